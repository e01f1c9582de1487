"""Tools of one episode, `workflow_context.tools`: opens servers, runs calls through all checks, records each call."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from agentrl_core.api.tools import ShownCall, ToolResult
from agentrl_core.errors import EnvironmentLostError, EpisodeError, RunError, ToolServerError, UsageError
from agentrl_core.tools.call import CallPath, CallTrace
from agentrl_core.tools.checks import problem_of_specs
from agentrl_core.tools.delivery import all_or_first_error, deliver
from agentrl_core.tools.listing import Listing, NamedServer, ServerTools, clash, list_all
from agentrl_core.tools.schemas import (
    anthropic_tools,
    described,
    openai_responses_tools,
    openai_tools,
    parse_arguments,
    plain,
    without_image,
)
from agentrl_core.types import ToolCall, ToolOutcome

if TYPE_CHECKING:
    from agentrl_core.api.tools import ToolEpisode, ToolSession, ToolSpec
    from agentrl_core.tools.toolbox import Toolbox
    from agentrl_core.types import Message

T = TypeVar("T")

logger = logging.getLogger(__name__)

_CLOSE_S = 10.0
"""Longest time that an episode's sessions may take to close, and that rows of its last calls may take to be stored."""
_STOP_S = 1.0
"""Longest wait for calls that were cancelled at the end of the episode."""
TOOLS_CHANGED = "tools_changed"
"""Mark of a record whose list of tools changed during the episode."""


class OpenTools:
    """Implementation of `api.tools.EpisodeTools`; belongs to the event loop on which it is made.

    Its public methods may also be awaited on other event loops, as frameworks with threads of their own do.
    """

    def __init__(
        self,
        toolbox: Toolbox,
        episode: ToolEpisode,
        *,
        keep: Callable[[ToolCall], Awaitable[None]],
        mark: Callable[[str], None],
        takes_images: Callable[[], bool] = lambda: True,
    ) -> None:
        self._toolbox, self._episode, self._keep, self._mark = toolbox, episode, keep, mark
        self._takes_images = takes_images
        self._loop = asyncio.get_running_loop()
        self.lost: EpisodeError | None = None
        """Error for which the record must be rejected, whatever the workflow returned."""
        self._sessions: dict[str, ToolSession] = {}
        self._parts: list[ServerTools] = []
        self._listing: Listing | None = None
        self._opening: asyncio.Task[None] | None = None
        self._calls = 0
        self._state: dict[str, Any] = {}
        self._running: set[asyncio.Task[Any]] = set()
        """Calls of `call_all`, and those from other event loops."""
        self._storing: set[asyncio.Task[None]] = set()
        """Rows that are being stored."""
        self._closed = False

    async def specs(self) -> Sequence[ToolSpec]:
        """Return the tools that the model may use, under the names that it uses."""
        return await self._at_home(self._specs())

    async def as_openai(self) -> list[dict[str, Any]]:
        """Return the tools for `chat.completions.create(tools=…)`."""
        return openai_tools(await self.specs())

    async def as_openai_responses(self) -> list[dict[str, Any]]:
        """Return the tools for `responses.create(tools=…)`."""
        return openai_responses_tools(await self.specs())

    async def as_anthropic(self) -> list[dict[str, Any]]:
        """Return the tools for `messages.create(tools=…)`."""
        return anthropic_tools(await self.specs())

    async def listing(self) -> Listing:
        """Return the tools with their servers, for commands."""
        return await self._at_home(self._current_listing())

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | str,
        *,
        id: str = "",  # noqa: A002 - the word of the LLM APIs
        messages: Sequence[Message] = (),
    ) -> ShownCall:
        """Call a tool; `arguments` may be the JSON text that the model wrote."""
        return await self._at_home(self._call(name, arguments, id, messages))

    async def call_all(self, message: Any, *, messages: Sequence[Message] = ()) -> list[Message]:
        """Run all tool calls of an assistant message at the same time; return the tool messages in its order."""
        calls = [_asked_call(item) for item in _member(message, "tool_calls") or ()]
        return await self._at_home(self._call_all(calls, messages))

    async def _at_home(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` on the loop of the run, wherever the caller is."""
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._until_close(work), self._loop))

    async def _until_close(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work for another event loop; `close` cancels it, as nothing else ends it with the episode."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await work

    async def _specs(self) -> Sequence[ToolSpec]:
        return (await self._current_listing()).offered

    async def _call_all(self, calls: Sequence[tuple[str, Any, str]], messages: Sequence[Message]) -> list[Message]:
        shown = await all_or_first_error(
            (self._call(name, arguments, call_id, messages) for name, arguments, call_id in calls), self._running
        )
        return [item.message for item in shown]

    async def _call(
        self, name: str, arguments: Mapping[str, Any] | str, call_id: str, messages: Sequence[Message]
    ) -> ShownCall:
        self._check_usable()
        seq, self._calls = self._calls, self._calls + 1
        parsed, problem = parse_arguments(arguments)
        written = parsed if parsed is not None else arguments if isinstance(arguments, str) else repr(arguments)
        row = ToolCall(
            id=uuid.uuid4().hex,
            record_id=self._episode.record_id,
            seq=seq,
            call_id=call_id,
            name=name,
            arguments=written,
            outcome=ToolOutcome.CANCELLED,
            started_at=time.time(),
        )
        trace = CallTrace()
        try:
            shown = self._refusal(seq, problem, trace)
            if shown is None:
                path = CallPath(toolbox=self._toolbox, listing=await self._current_listing(), trace=trace)
                with self._noting():
                    shown = await path.run(self._episode, name, parsed or {}, messages, self._state)
        except asyncio.CancelledError:
            self._begin_to_store(_ended(row, trace, ToolOutcome.CANCELLED))
            raise
        except EpisodeError as error:
            trace.error = described(error)
            await self._store(_ended(row, trace, ToolOutcome.ENVIRONMENT_LOST))
            raise
        if any(part["type"] == "image_url" for part in shown.content) and not self._takes_images():
            # An LLM call with the image would be refused, and end an episode whose agent cannot help it.
            shown = attrs.evolve(shown, content=tuple(map(without_image, shown.content)))
        outcome = trace.outcome or (ToolOutcome.BLOCKED if shown.is_error else ToolOutcome.OK)
        if outcome is not ToolOutcome.OK:
            self._mark(outcome.value)
        await self._store(_ended(row, trace, outcome, shown))
        return ShownCall(id=call_id or f"call_{row.id[:24]}", name=name, result=shown, outcome=outcome)

    def _refusal(self, seq: int, problem: str, trace: CallTrace) -> ToolResult | None:
        """Return the result of a call that is not even looked up; None for any other."""
        limit = self._toolbox.config.max_calls
        if limit is not None and seq >= limit:
            text = f"all {limit} tool calls of this task are used up; answer without further calls"
            return trace.refuse(ToolOutcome.BLOCKED, text)
        return trace.refuse(ToolOutcome.INVALID_ARGUMENTS, problem) if problem else None

    def _check_usable(self) -> None:
        if self._toolbox.fatal is not None:
            raise self._toolbox.fatal
        if self.lost is not None:
            raise self.lost
        if self._closed:
            raise LookupError("the episode has ended, and its tools with it")

    def _lose(self, error: EpisodeError) -> None:
        """Remember why the record is rejected: the agent's framework may swallow the exception."""
        if self.lost is None:
            self.lost = error
            self._mark(error.reason)

    # Opening and listing

    async def _current_listing(self) -> Listing:
        self._check_usable()
        if self._opening is None:
            self._opening = asyncio.create_task(self._open_all())
        # Shielded: calls that run at the same time wait for one opening, and one of them may be cancelled.
        await asyncio.shield(self._opening)
        if any(_changes(part.session) != part.changes for part in self._parts):
            await self._list_changed()
        assert self._listing is not None  # noqa: S101 - set by `_open_all`
        return self._listing

    async def _open_all(self) -> None:
        servers = self._toolbox.servers
        found = await asyncio.gather(*(self._opened(server) for server in servers), return_exceptions=True)
        with self._noting():
            for item in found:
                if isinstance(item, BaseException):
                    raise item
            self._relist([item for item in found if isinstance(item, ServerTools)])

    async def _list_changed(self) -> None:
        """List the tools of the servers anew that say that theirs have changed."""
        self._mark(TOOLS_CHANGED)
        with self._noting():
            parts = [
                part if _changes(part.session) == part.changes else await self._listed(part.server, part.session)
                for part in self._parts
            ]
            self._relist(parts)

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """Remember an error that ends the record or the run, because the agent may swallow it."""
        try:
            yield
        except EpisodeError as error:
            self._lose(error)
            raise
        except RunError as error:
            self._toolbox.fatal = self._toolbox.fatal or error
            raise

    def _relist(self, parts: list[ServerTools]) -> None:
        if problem := clash((part.server, part.specs) for part in parts):
            raise ToolServerError(problem)
        listing = list_all(parts, self._toolbox.middleware)
        if name := listing.offered_twice:
            raise ToolServerError(f"tools.middleware offers two tools '{name}': give one of them another name")
        self._parts, self._listing = parts, listing

    async def _opened(self, server: NamedServer) -> ServerTools:
        session = await self._asked(server, lambda _: self._open(server), "be opened", repeatable=False)
        return await self._listed(server, session)

    async def _open(self, server: NamedServer) -> ToolSession:
        """Open a session and keep it, also if nobody waits for it any more: `close`, or else this call, closes it."""
        session = await server.server.open(self._episode)
        if self._closed:
            await session.close()
            raise LookupError("the episode ended before the session was opened")
        self._sessions[server.name] = session
        return session

    async def _listed(self, server: NamedServer, session: ToolSession) -> ServerTools:
        changes = _changes(session)
        specs = tuple(await self._asked(server, lambda _: session.list_tools(), "list its tools", repeatable=True))
        if problem := await problem_of_specs(specs):
            raise self._server_fault(server, problem, ToolOutcome.INVALID_RESULT)
        return ServerTools(server=server, session=session, specs=specs, changes=changes)

    async def _asked(
        self, server: NamedServer, ask: Callable[[float], Coroutine[Any, Any, T]], what: str, *, repeatable: bool
    ) -> T:
        """Ask a server for something without which the episode cannot go on."""
        toolbox = self._toolbox
        try:
            delivery = await deliver(
                ask,
                repeatable=repeatable,
                timeout_s=server.timeout_s,
                retries=toolbox.retries,
                strays=toolbox.strays,
            )
        except (EpisodeError, RunError, UsageError):
            raise
        except Exception as error:
            logger.exception("tool server '%s' could not %s", server.name, what)
            raise self._server_fault(server, f"could not {what}: {described(error)}") from error
        if delivery.outcome is not ToolOutcome.OK:
            raise self._server_fault(server, f"could not {what}: {delivery.error}", delivery.outcome)
        return delivery.result  # type: ignore[return-value]  # there is one if the outcome is OK

    def _server_fault(
        self, server: NamedServer, text: str, outcome: ToolOutcome = ToolOutcome.ENVIRONMENT_LOST
    ) -> EpisodeError:
        self._toolbox.count(server, outcome, text)
        return EnvironmentLostError(f"tool server '{server.name}' {text}", server=server.name)

    # Rows and the end

    def _begin_to_store(self, row: ToolCall) -> asyncio.Task[None]:
        task = asyncio.create_task(_kept(self._keep, row))
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)
        task.add_done_callback(_log_failure)
        return task

    async def _store(self, row: ToolCall) -> None:
        # Shielded: a row that is being written is written to its end, and `close` waits for it.
        await asyncio.shield(self._begin_to_store(row))

    async def close(self) -> None:
        """End what still runs, close the sessions and wait until all rows are stored; problems are logged.

        Later calls raise `LookupError`.
        """
        self._closed = True
        running = {*self._running, *([] if self._opening is None else [self._opening])}
        for task in running:
            task.cancel()
        if stopping := {*running, *self._storing}:
            await asyncio.wait(stopping, timeout=_STOP_S)
        closing = {asyncio.create_task(session.close()): name for name, session in self._sessions.items()}
        ending = {*closing, *self._storing}
        if not ending:
            return
        await asyncio.wait(ending, timeout=_CLOSE_S)
        for task, name in closing.items():
            if not task.done():
                self._toolbox.strays.give_up(task)
                logger.warning(
                    "record %s: tool server '%s' did not close its session within %g s",
                    self._episode.record_id,
                    name,
                    _CLOSE_S,
                )
            elif not task.cancelled() and (error := task.exception()) is not None:
                logger.warning(
                    "record %s: tool server '%s' could not close its session",
                    self._episode.record_id,
                    name,
                    exc_info=error,
                )


def _ended(row: ToolCall, trace: CallTrace, outcome: ToolOutcome, shown: ToolResult | None = None) -> ToolCall:
    """Return the row of a call that has ended."""
    content = () if shown is None else shown.content
    return attrs.evolve(
        row,
        outcome=outcome,
        error=trace.error,
        server=trace.server,
        tool=trace.tool,
        isolation=trace.isolation,
        sent=None if trace.sent is None or trace.sent == row.arguments else plain(trace.sent),
        raw=None if trace.raw is None or trace.raw == content else plain(trace.raw),
        shown=plain(content),
        attempts=trace.attempts,
        middleware=tuple(trace.middleware),
        finished_at=time.time(),
    )


async def _kept(keep: Callable[[ToolCall], Awaitable[None]], row: ToolCall) -> None:
    await keep(row)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("a tool call could not be stored: %s", described(error))


def _changes(session: ToolSession) -> int:
    """Return the number of times that a session's list of tools has changed; most sessions have no such number."""
    return int(getattr(session, "changes", 0))


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _asked_call(item: Any) -> tuple[str, Any, str]:
    """Return name, arguments and id of a tool call in an assistant message."""
    function = _member(item, "function")
    arguments = _member(function, "arguments")
    return str(_member(function, "name") or ""), "" if arguments is None else arguments, str(_member(item, "id") or "")
