"""Start the tool servers of a config, for a process that samples, or for a command without a run."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import uuid
from typing import TYPE_CHECKING, Any

from agentrl_core.api.tools import ToolEpisode
from agentrl_core.errors import AgentRLError, ConfigError
from agentrl_core.plugins.manager import load_registry
from agentrl_core.run.checks import Checks
from agentrl_core.run.component_checks import problems_of
from agentrl_core.run.scheduling import END_S
from agentrl_core.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from contextlib import ExitStack

    from agentrl_core.config import LoadedConfig
    from agentrl_core.config.schema import RunConfig
    from agentrl_core.run.component_checks import BuiltComponents
    from agentrl_core.run.components import RunComponents
    from agentrl_core.run.threads import LoopThread
    from agentrl_core.tools.episode import OpenTools
    from agentrl_core.types import Task, ToolCall


def toolbox_of(components: BuiltComponents[RunConfig]) -> Toolbox | None:
    """Return the tools that the config lists, of the servers that the checks have built; None if it lists none."""
    servers = components.of("tools")
    return Toolbox(components.config.tools, servers, components.of("tool_middleware")) if servers else None


def start_tools(
    components: RunComponents, loop: LoopThread, undo: ExitStack, asked_to_stop: Callable[[], None]
) -> Toolbox | None:
    """Start the config's tool servers on the agents' loop; `undo` closes them. None if the config lists none.

    Raises `ToolServerError` for a server that does not start.
    """
    toolbox = toolbox_of(components)
    if toolbox is not None:
        undo.callback(lambda: loop.try_run(toolbox.close(), "closing the tool servers", limit_s=END_S))
        loop.run(toolbox.start(), asked_to_stop=asked_to_stop)
    return toolbox


@contextlib.asynccontextmanager
async def tools_without_a_run(
    loaded: LoadedConfig[RunConfig], task_id: str, calls: list[ToolCall]
) -> AsyncIterator[OpenTools]:
    """Start the config's tool servers, and yield the tools of one episode of a task; without an id, its row is empty.

    Calls are added to `calls`. Raises `ConfigError` for a wrong config, for one without servers, and for an unknown
    task, `ToolServerError` for a server that does not start.
    """
    checks = _checks(loaded)
    toolbox, data = _checked_toolbox(checks, loaded), _row(checks, loaded, task_id)
    episode = ToolEpisode(record_id=f"cli-{uuid.uuid4().hex[:16]}", task_id=task_id, data=data)

    async def keep(call: ToolCall) -> None:
        calls.append(call)

    await toolbox.start()
    tools = toolbox.open(episode, keep=keep, mark=lambda _: None)
    try:
        yield tools
    finally:
        await tools.close()
        await toolbox.close()


def _checks(loaded: LoadedConfig[RunConfig]) -> Checks:
    plugins = loaded.run.plugins
    return Checks(loaded, load_registry(plugins.block, on_error=plugins.on_error), load_datasets=True)


def _row(checks: Checks, loaded: LoadedConfig[RunConfig], task_id: str) -> Mapping[str, Any]:
    """Return the row of a task of the config; an empty one without an id."""
    if not task_id:
        return {}
    sources = loaded.run.data.sources
    for key, source in sources.items():
        for task in checks.read_tasks(key, source):
            if task.id == task_id:
                return task.data
    searched = ", ".join(source.use for source in sources.values()) or "the config, which names no tasks"
    raise ConfigError(f"{loaded.where('data')}: there is no task '{task_id}' in {searched}")


def check_start(built: BuiltComponents[RunConfig], *, connect: bool) -> None:
    """Raise `ConfigError` for tool servers that cannot start on this machine, before anything is loaded for a run.

    `connect`: also wait for those that are elsewhere, which the run would do later. The components are closed then.
    """
    problems = [
        f"{built.where(key)}: {text}"
        for key, server in built.early.get("tools", {}).items()
        if (check := getattr(server, "check_start", None)) is not None
        for text in problems_of(functools.partial(check, connect=connect))
    ]
    if problems:
        built.close()
        raise ConfigError("\n".join(problems))


def start_problems(loaded: LoadedConfig[RunConfig]) -> Iterator[str]:
    """Yield what keeps the config's tool servers from starting on this machine, without connecting to any."""
    if loaded.run.tools.servers:
        yield from problems_of(lambda: _checked_toolbox(_checks(loaded), loaded))


def _checked_toolbox(checks: Checks, loaded: LoadedConfig[RunConfig]) -> Toolbox:
    problems = [*checks.imports(), *checks.of_kinds("tools", "tool_middleware"), *checks.tools()]
    if not problems:
        problems += problems_of(lambda: check_start(checks.built, connect=False))
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    toolbox = toolbox_of(checks.built)
    if toolbox is None:
        raise ConfigError(f"{loaded.where('tools')}: lists no servers; expected at least one under tools.servers")
    return toolbox


def examine_tasks(loaded: LoadedConfig[RunConfig], tasks: Sequence[Task]) -> list[str]:
    """Have the tool servers that can do it examine the tasks (`api.tools.ToolServer`); return what they find wrong."""

    async def examined() -> list[str]:
        toolbox = _checked_toolbox(_checks(loaded), loaded)
        examine = [server.server.examine for server in toolbox.servers if hasattr(server.server, "examine")]
        if not examine:
            return []
        await toolbox.start()
        try:
            return [problem for one in examine for problem in await one(tasks)]
        finally:
            await toolbox.close()

    return asyncio.run(examined())


def servers_down(loaded: LoadedConfig[RunConfig]) -> str:
    """Start the tool servers and close them again; return the message about one that is down, else an empty text."""
    if not loaded.run.tools.servers:
        return ""

    async def started() -> str:
        try:
            toolbox = _checked_toolbox(_checks(loaded), loaded)
            await toolbox.start()
        except AgentRLError as error:
            return str(error)
        await toolbox.close()
        return ""

    return asyncio.run(started())
