"""Tool calls of an episode beside its LLM calls: which one asked for each, and the facts that exports tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.types import Episode, Interaction, ToolCall


def by_asking_call(episode: Episode) -> dict[str | None, list[ToolCall]]:
    """Return the tool calls by the id of the LLM call that asked for them, in the order of their start.

    Ids that models give to tool calls may repeat, so the last LLM call with the id that ended before the tool call is
    taken. A tool call without a known id belongs to the last LLM call that ended before it; None if there is none.
    """
    ended = sorted(episode.interactions, key=lambda item: (item.finished_at, item.seq))
    asking: dict[str, list[Interaction]] = {}
    for item in ended:
        for asked in item.output.get("tool_calls") or ():
            if name := asked.get("id"):
                asking.setdefault(name, []).append(item)
    found: dict[str | None, list[ToolCall]] = {}
    for call in sorted(episode.tool_calls, key=lambda call: call.seq):
        named = asking.get(call.call_id, ())
        before = _last_before(call, named or ended)
        # The clocks of two machines may differ: a known id counts more than the time.
        place = named[0] if before is None and named else before
        found.setdefault(None if place is None else place.id, []).append(call)
    return found


def _last_before(call: ToolCall, ended: Sequence[Interaction]) -> Interaction | None:
    """Return the last LLM call, of some in the order of their end, that ended before a tool call began."""
    return next((item for item in reversed(ended) if item.finished_at <= call.started_at), None)


def tool_call_facts(call: ToolCall) -> Mapping[str, Any]:
    """Return what a reader of messages, which have name, arguments and result already, does not see of a tool call."""
    return {
        "outcome": call.outcome.value,
        **({"error": call.error} if call.error else {}),
        "server": call.server,
        "tool": call.tool,
        "seconds": call.finished_at - call.started_at,
        "attempts": call.attempts,
        **({"middleware": list(call.middleware)} if call.middleware else {}),
    }
