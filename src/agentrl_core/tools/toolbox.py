"""Tool servers and middleware of one process: started once, opened for each episode, closed at the end of the run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from agentrl_core.errors import ConfigError, RunError, ToolServerError, UsageError
from agentrl_core.tools.checks import problem_of_specs
from agentrl_core.tools.delivery import Strays, all_or_first_error, retry_policy
from agentrl_core.tools.entries import common_options
from agentrl_core.tools.episode import OpenTools
from agentrl_core.tools.health import Health
from agentrl_core.tools.listing import NamedMiddleware, NamedServer, clash
from agentrl_core.tools.schemas import described

if TYPE_CHECKING:
    from agentrl_core.api.tools import ToolEpisode, ToolMiddleware, ToolServer, ToolSpec
    from agentrl_core.config.sampling_sections import ToolsConfig
    from agentrl_core.types import ToolCall, ToolOutcome

logger = logging.getLogger(__name__)

_START_S = 300.0
"""Longest time that all servers may take to start; a container's image may have to be loaded."""
_CLOSE_S = 10.0
"""Longest time that all servers may take to close."""


class Toolbox:
    """Tools of all episodes of a process, on the agents' event loop.

    `servers` and `middleware` are built from the entries of `config`, in their order.
    """

    def __init__(
        self,
        config: ToolsConfig,
        servers: Sequence[ToolServer],
        middleware: Sequence[ToolMiddleware] = (),
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.config = config
        self.servers: Sequence[NamedServer] = tuple(
            _named(config, index, server) for index, server in enumerate(servers)
        )
        self.middleware: Sequence[NamedMiddleware] = tuple(
            NamedMiddleware(name=entry.use, middleware=item)
            for entry, item in zip(config.middleware, middleware, strict=True)
        )
        self.retries = retry_policy(config.retries, sleep)
        self.places = asyncio.Semaphore(config.max_concurrent_calls)
        """Limit of the calls of all episodes at once."""
        self.strays = Strays()
        self.fatal: RunError | None = None
        """Error for which the run must end; None while the servers work."""

    async def start(self) -> None:
        """Start all servers, and check the tools of those that can list them without an episode.

        Raises `ToolServerError` for a server that does not start, with its name, and `ConfigError` if two have a tool
        of one name; all servers are closed then.
        """
        starting: set[asyncio.Task[Any]] = set()
        try:
            async with asyncio.timeout(_START_S):
                lists = await all_or_first_error(map(_started, self.servers), starting)
        except BaseException as error:
            if starting:
                await asyncio.wait(starting, timeout=_CLOSE_S)
            await self.close()
            if isinstance(error, TimeoutError):
                names = ", ".join(server.name for server in self.servers)
                raise ToolServerError(f"the tool servers ({names}) did not start within {_START_S:g} s") from error
            raise
        if problem := clash(zip(self.servers, lists, strict=True)):
            await self.close()
            raise ConfigError(f"tools.servers: {problem}")

    def open(
        self,
        episode: ToolEpisode,
        *,
        keep: Callable[[ToolCall], Awaitable[None]],
        mark: Callable[[str], None],
        takes_images: Callable[[], bool] = lambda: True,
    ) -> OpenTools:
        """Return the tools of an episode, for the running event loop; the caller closes them.

        `keep(call)` stores an ended call; `mark(word)` marks the record. `takes_images()` says whether the model can
        see images; otherwise it is told of those in results by a text.
        """
        return OpenTools(self, episode, keep=keep, mark=mark, takes_images=takes_images)

    def count(self, server: NamedServer, outcome: ToolOutcome, error: str = "") -> None:
        """Count how a call of a server has ended; sets `fatal` when too many have failed."""
        problem = server.health.add(outcome, error)
        if problem is not None and self.fatal is None:
            self.fatal = problem
            logger.error("%s", problem)

    async def close(self) -> None:
        """Close all servers; problems are logged."""
        closing = {asyncio.create_task(server.server.close()): server.name for server in self.servers}
        if closing:
            _, pending = await asyncio.wait(closing, timeout=_CLOSE_S)
            for task in pending:
                self.strays.give_up(task)
                logger.warning("tool server '%s' did not close within %g s", closing[task], _CLOSE_S)
            for task, name in closing.items():
                if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                    logger.warning("tool server '%s' could not be closed", name, exc_info=error)
        if left := await self.strays.ended(limit_s=_CLOSE_S / 10):
            logger.warning("%d tool calls go on after they were cancelled, and are abandoned", left)


def _named(config: ToolsConfig, index: int, server: ToolServer) -> NamedServer:
    options = common_options(config.servers[index], index)
    return NamedServer(
        name=options.name,
        prefix=options.prefix,
        timeout_s=options.timeout_s or config.timeout_s,
        server=server,
        health=Health(options.name, config),
    )


async def _started(server: NamedServer) -> Sequence[ToolSpec]:
    """Start a server; return its tools if it lists them without an episode, else none. Raises `ToolServerError`."""
    listing: Callable[[], Awaitable[Sequence[ToolSpec]]] | None = getattr(server.server, "list_tools", None)
    try:
        await server.server.start()
        specs = () if listing is None else tuple(await listing())
    except (UsageError, ToolServerError) as error:
        text = str(error)
        raise type(error)(text if server.name in text else f"tool server '{server.name}': {text}") from error
    except Exception as error:
        raise ToolServerError(
            f"tool server '{server.name}' could not be started: {described(error)}; start what it needs, or correct "
            "its entry in tools.servers"
        ) from error
    if problem := await problem_of_specs(specs):
        raise ToolServerError(f"tool server '{server.name}' {problem}")
    return specs
