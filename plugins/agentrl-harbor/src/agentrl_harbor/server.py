"""The tool server `harbor`: a sandbox for each episode's task, with the tools `bash`, `read_file` and `write_file`.

The sandbox outlives the agent: the scorer `harbor` runs the verifier in it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from agentrl_core.api.tools import Isolation, ToolResult, ToolSpec
from agentrl_core.errors import ConfigError, EnvironmentLostError, ToolServerError
from agentrl_harbor.containers import Containers
from agentrl_harbor.local import Local
from agentrl_harbor.oracle import problems_of
from agentrl_harbor.sandbox import Provider, Sandbox, UnusableError, pack_file, parent_and_name, read_file
from agentrl_harbor.task_dir import Definition, TaskDir

if TYPE_CHECKING:
    from agentrl_core import Task
    from agentrl_core.api.tools import ToolEpisode

logger = logging.getLogger(__name__)

_PARKED_S: Final = 30.0
"""Time after the agent's end in which the scorer has to ask; nobody asks after an agent that failed."""
_MOST_KNOWN: Final = 10_000
"""Records that are remembered after their sandbox is gone."""
_FILE_BYTES: Final = 1_000_000
_MARGIN_S: Final = 2.0
"""Time of a call that is left to report that its command was ended."""
STARTED: list[HarborTools] = []
"""Servers of this process that have started: the scorer finds sandboxes by them."""


@attrs.define
class OpenTask:
    """A sandbox with its task."""

    task: TaskDir
    sandbox: Sandbox
    ends_at: float | None
    """Time of the loop's clock at which the agent's time is up; None: never."""
    timer: asyncio.TimerHandle | None = None


class HarborTools:
    """Tools in sandboxes of task directories.

    `provider`: `docker`, `podman`, or `local`, which makes sandboxes of Linux namespaces. `max_sandboxes`: sandboxes at
    once; episodes wait for a place. `tools`: names of the tools that the agent gets. `command_timeout_s`: longest time
    of a command of the agent. `output_chars`: characters of a command's output that the agent sees. `start_timeout_s`:
    longest time until a container runs, when its image exists. `host_network`, `assume_installed` and `mounts` belong
    to `local`.
    """

    isolation: Isolation = "process"

    def __init__(
        self,
        *,
        provider: Literal["docker", "podman", "local"] = "docker",
        max_sandboxes: int = 16,
        tools: tuple[str, ...] = ("bash", "read_file", "write_file"),
        command_timeout_s: float = 60.0,
        output_chars: int = 20_000,
        start_timeout_s: float = 120.0,
        host_network: bool = False,
        assume_installed: bool = False,
        mounts: tuple[str, ...] = (),
    ) -> None:
        self._provider: Provider
        if provider == "local":
            self._provider = Local(host_network=host_network, assume_installed=assume_installed, mounts=mounts)
        else:
            self._provider = Containers(provider, start_timeout_s=start_timeout_s)
        if unknown := [name for name in tools if name not in {spec.name for spec in _TOOLS}]:
            raise ConfigError(f"tools: there is no tool '{unknown[0]}'; the tools are bash, read_file and write_file")
        self.tools = tuple(spec for spec in _TOOLS if spec.name in tools)
        self._max_sandboxes = max_sandboxes
        self.command_timeout_s, self.output_chars = command_timeout_s, output_chars
        self._places: asyncio.Semaphore | None = None
        self._open: dict[str, OpenTask] = {}
        """By record."""
        self._known: OrderedDict[str, None] = OrderedDict()
        """Records that have had a sandbox."""
        self._closing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Check the provider, and remove what killed runs have left."""
        self._places = asyncio.Semaphore(self._max_sandboxes)
        await self._provider.start()
        STARTED.append(self)

    async def open(self, episode: ToolEpisode) -> HarborSession:
        """Make a sandbox for the episode's task."""
        opened = await self.open_task(episode.data)
        self._open[episode.record_id] = opened
        self._known[episode.record_id] = None
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return HarborSession(self, episode.record_id, opened)

    async def open_task(self, data: Mapping[str, Any]) -> OpenTask:
        """Make a sandbox for a row of the data set, once there is a place for it."""
        return await self.open_sandbox_of(_task_of(data))

    async def open_sandbox_of(self, task: TaskDir) -> OpenTask:
        """Make a sandbox for a task, once there is a place for it."""
        if refusal := self._provider.refusal(task):
            raise ToolServerError(f"{task.path}: {refusal}")
        assert self._places is not None  # noqa: S101 - `start` came before
        await self._places.acquire()
        try:
            sandbox = await self._provider.open(task.environment)
            try:
                await _wait_until_healthy(task, sandbox)
            except BaseException:
                await asyncio.shield(sandbox.close())
                raise
        except BaseException:
            self._places.release()
            raise
        timeout_s = task.config.agent_timeout_s
        ends_at = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        return OpenTask(task=task, sandbox=sandbox, ends_at=ends_at)

    async def open_sandbox(self, definition: Definition) -> Sandbox:
        """Make a second sandbox for a verifier; it takes no place, because its task has one."""
        return await self._provider.open(definition)

    async def examine(self, tasks: Sequence[Task]) -> list[str]:
        """Return what is wrong with tasks, for `agentrl doctor`."""
        return await problems_of(self, self._provider, [_task_of(task.data) for task in tasks])

    def park(self, record_id: str) -> None:
        """Keep the sandbox of an ended agent for the verifier, for a short time."""
        if (opened := self._open.get(record_id)) is not None:
            loop = asyncio.get_running_loop()
            opened.timer = loop.call_later(_PARKED_S, self._expire, record_id)

    def take(self, record_id: str) -> OpenTask | None:
        """Return the sandbox of an ended agent, which then belongs to the caller; None if there is none."""
        opened = self._open.pop(record_id, None)
        if opened is not None and opened.timer is not None:
            opened.timer.cancel()
        return opened

    def has_had(self, record_id: str) -> bool:
        """Return whether a record had a sandbox, which may be gone."""
        return record_id in self._known

    async def discard(self, opened: OpenTask) -> None:
        """Remove a sandbox, and give its place to the next episode."""
        try:
            await opened.sandbox.close()
        finally:
            assert self._places is not None  # noqa: S101 - `start` came before
            self._places.release()

    def _expire(self, record_id: str) -> None:
        if (opened := self.take(record_id)) is not None:
            task = asyncio.create_task(self.discard(opened))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Remove all sandboxes."""
        if self in STARTED:
            STARTED.remove(self)
        for record_id in tuple(self._open):
            self._expire(record_id)
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._provider.close()


class HarborSession:
    """Tools of one episode."""

    def __init__(self, server: HarborTools, record_id: str, opened: OpenTask) -> None:
        self._server, self._record_id, self._opened = server, record_id, opened

    async def list_tools(self) -> Sequence[ToolSpec]:
        """Return the tools."""
        return self._server.tools

    async def call(self, name: str, arguments: Mapping[str, Any], *, timeout_s: float) -> ToolResult:
        """Run a tool in the sandbox."""
        limit_s = min(self._server.command_timeout_s, max(timeout_s - _MARGIN_S, timeout_s / 2))
        if self._opened.ends_at is not None:
            limit_s = min(limit_s, self._opened.ends_at - asyncio.get_running_loop().time())
            if limit_s <= 0:
                return ToolResult.of_text("the time for this task is up", is_error=True)
        if name == "bash":
            return await self._bash(arguments["command"], limit_s)
        path = str(arguments["path"])
        if name == "read_file":
            return await self._read(path)
        return await self._write(path, str(arguments["text"]))

    async def close(self) -> None:
        """Leave the sandbox to the verifier."""
        self._server.park(self._record_id)

    async def _bash(self, command: str, limit_s: float) -> ToolResult:
        chars = self._server.output_chars
        user = self._opened.task.config.agent_user
        ended = await self._opened.sandbox.run(command, timeout_s=limit_s, limit_bytes=4 * chars, user=user)
        text = ended.text[:chars]
        if ended.cut or len(ended.text) > chars:
            text += "\n[the output is longer and was cut]"
        if ended.status is None:
            text += f"\n[ended after {limit_s:.0f} s]"
        elif ended.status:
            text += f"\n[exit code {ended.status}]"
        return ToolResult.of_text(text.strip() or "(no output)")

    async def _read(self, path: str) -> ToolResult:
        try:
            data = await read_file(self._opened.sandbox, await self._absolute(path), limit_bytes=_FILE_BYTES)
        except ValueError as error:
            return ToolResult.of_text(str(error), is_error=True)
        if data is None:
            return ToolResult.of_text(f"there is no file {path}", is_error=True)
        text = data.decode("utf-8", "replace")
        cut = "\n[the file is longer and was cut]" if len(text) > self._server.output_chars else ""
        return ToolResult.of_text(text[: self._server.output_chars] + cut)

    async def _write(self, path: str, text: str) -> ToolResult:
        folder, name = parent_and_name(await self._absolute(path))
        if not name:
            return ToolResult.of_text(f"{path} is not a file", is_error=True)
        try:
            await self._opened.sandbox.put(pack_file(name, text.encode("utf-8", "replace")), folder)
        except UnusableError as error:
            return ToolResult.of_text(str(error), is_error=True)
        return ToolResult.of_text(f"wrote {path}")

    async def _absolute(self, path: str) -> str:
        """Return a path below the working directory of commands, unless it is absolute."""
        if path.startswith("/"):
            return path
        ended = await self._opened.sandbox.run("pwd", timeout_s=30, limit_bytes=4000)
        return f"{ended.text.strip() or '/'}/{path}"


_TOOLS: Final = (
    ToolSpec(
        name="bash",
        description="Run a command by bash.",
        parameters={
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    ),
    ToolSpec(
        name="read_file",
        description="Read a text file.",
        parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        read_only=True,
        idempotent=True,
    ),
    ToolSpec(
        name="write_file",
        description="Write a text file; an existing one is replaced.",
        parameters={
            "type": "object",
            "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
            "required": ["path", "text"],
        },
        idempotent=True,
    ),
)


def _task_of(data: Mapping[str, Any]) -> TaskDir:
    folder = data.get("task_dir")
    if not isinstance(folder, str):
        needed = "the tool server 'harbor' needs tasks of the data set 'harbor'"
        # A command such as `agentrl tools list` opens an episode without a task.
        if not data:
            raise ToolServerError(f"there is no task: {needed}; `--task ID` names one")
        raise ToolServerError(f"task '{data.get('id')}' has no `task_dir`: {needed}")
    try:
        return TaskDir.read(Path(folder))
    except ValueError as error:
        raise ToolServerError(str(error)) from error


async def _wait_until_healthy(task: TaskDir, sandbox: Sandbox) -> None:
    """Run the task's health check until it succeeds."""
    check = task.config.environment.healthcheck
    if check is None:
        return
    begin, failures = time.monotonic(), 0
    while True:
        ended = await sandbox.run(check.command, timeout_s=check.timeout_s, limit_bytes=2000)
        if ended.status == 0:
            return
        if time.monotonic() - begin > check.start_period_s:
            failures += 1
        if failures >= max(check.retries, 1):
            raise EnvironmentLostError(f"{task.path}: the health check failed: {ended.text.strip()[:300]}")
        await asyncio.sleep(check.interval_s)
