"""Tools of a replayed episode: each call gets the result that the record has of it, and no server is started."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import orjson

from agentrl_core.api.tools import ShownCall, ToolResult, ToolSpec
from agentrl_core.errors import EnvironmentLostError, RunError
from agentrl_core.tools.episode import OpenTools
from agentrl_core.tools.schemas import one_line, parse_arguments
from agentrl_core.tools.toolbox import Toolbox
from agentrl_core.types import Outcome, ToolOutcome

if TYPE_CHECKING:
    from agentrl_core.api.tools import ToolEpisode
    from agentrl_core.config.sampling_sections import ToolsConfig
    from agentrl_core.types import Episode, Message, ToolCall

_LOST = "environment_lost"


class RecordedToolbox(Toolbox):
    """Toolbox whose tools answer with the recorded results of `episode`, each once, whatever the order of the calls.

    Calls with equal names and arguments get their results in the order in which they began. The tools that the agent
    may list are those that its LLM calls were offered.
    """

    def __init__(self, config: ToolsConfig, episode: Episode) -> None:
        super().__init__(attrs.evolve(config, servers=(), middleware=(), max_calls=None), ())
        self.diverged: concurrent.futures.Future[str] = concurrent.futures.Future()
        """Done at the first call that the episode does not contain, with a line that describes it."""
        self.answered = 0
        """Results given."""
        self.left = sorted(episode.tool_calls, key=lambda call: call.seq)
        """Recorded calls that the replay has not made."""
        self.specs = _offered(episode)
        record, lost_calls = episode.record, {call.outcome for call in episode.tool_calls}
        self.lost_at_opening = record.reason == _LOST and ToolOutcome.ENVIRONMENT_LOST not in lost_calls
        """Whether a server was lost before any tool was called."""
        self.ended_early = record.outcome in (Outcome.TIMED_OUT, Outcome.CANCELLED)

    def open(
        self,
        episode: ToolEpisode,
        *,
        keep: Callable[[ToolCall], Awaitable[None]],
        mark: Callable[[str], None],
        takes_images: Callable[[], bool] = lambda: True,  # noqa: ARG002 - results are those that were shown
    ) -> OpenTools:
        """Return the recorded tools of the episode, for the running event loop."""
        return _RecordedTools(self, episode, keep=keep, mark=mark)

    def take(self, name: str, arguments: Mapping[str, object] | str) -> ToolCall:
        """Return the recorded call of a tool with these arguments; note the divergence and raise if there is none."""
        parsed, _ = parse_arguments(arguments)
        written = arguments if parsed is None else parsed
        found = next((call for call in self.left if (call.name, call.arguments) == (name, written)), None)
        if found is None:
            after = f"; the next recorded one is {described_call(self.left[0])}" if self.left else ""
            raise self._diverge(f"a tool call was not recorded: {_asked(name, written)}{after}")
        if found.outcome is ToolOutcome.CANCELLED and self.ended_early:
            raise self._diverge(f"{described_call(found)} had not ended when the recorded episode did")
        self.left.remove(found)
        self.answered += 1
        return found

    def _diverge(self, text: str) -> RunError:
        if not self.diverged.done():
            self.diverged.set_result(text)
        self.fatal = RunError(text)
        return self.fatal


class _RecordedTools(OpenTools):
    """The tools of the episode that is replayed."""

    def __init__(
        self,
        toolbox: RecordedToolbox,
        episode: ToolEpisode,
        *,
        keep: Callable[[ToolCall], Awaitable[None]],
        mark: Callable[[str], None],
    ) -> None:
        super().__init__(toolbox, episode, keep=keep, mark=mark)
        self._recorded = toolbox

    async def _specs(self) -> Sequence[ToolSpec]:
        self._check_usable()
        if self._recorded.lost_at_opening:
            raise self._environment_lost("as recorded, a tool server was lost before a tool was called")
        return self._recorded.specs

    async def _call(
        self,
        name: str,
        arguments: Mapping[str, object] | str,
        call_id: str,
        messages: Sequence[Message],  # noqa: ARG002 (nothing is summarised anew)
    ) -> ShownCall:
        self._check_usable()
        call = self._recorded.take(name, arguments)
        if call.outcome is ToolOutcome.CANCELLED:
            # The agent gave up waiting, and does so again; the episode's time limit ends it in any case.
            await asyncio.Event().wait()
        if call.outcome is ToolOutcome.ENVIRONMENT_LOST:
            raise self._environment_lost(call.error, server=call.server)
        if call.outcome is not ToolOutcome.OK:
            self._mark(call.outcome.value)
        result = ToolResult(content=call.shown, is_error=call.outcome is not ToolOutcome.OK)
        return ShownCall(id=call_id or f"call_{call.id[:24]}", name=name, result=result, outcome=call.outcome)

    def _environment_lost(self, text: str, *, server: str = "") -> EnvironmentLostError:
        error = EnvironmentLostError(text, server=server)
        self._lose(error)
        return error


def described_call(call: ToolCall) -> str:
    """Return place, name and arguments of a recorded call for a message."""
    return f"tool call [{call.seq}] {_asked(call.name, call.arguments)}"


def _asked(name: str, arguments: object) -> str:
    text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    return f"{name}({one_line(text, 100)})"


def _offered(episode: Episode) -> tuple[ToolSpec, ...]:
    """Return the tools that the episode's LLM calls were offered, in the order in which they first appear."""
    found: dict[str, ToolSpec] = {}
    for item in sorted(episode.interactions, key=lambda item: item.seq):
        for tool in () if item.upstream else item.tools:
            function = tool.get("function", tool)
            if isinstance(function, Mapping) and (name := function.get("name")) and name not in found:
                parameters = function.get("parameters") or {"type": "object", "properties": {}}
                description = function.get("description") or ""
                found[name] = ToolSpec(name=name, description=description, parameters=parameters)
    return tuple(found.values())
