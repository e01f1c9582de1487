"""Comparison of two episodes' tokens and messages, for replays and for `agentrl trace diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def shared_tokens(one: Sequence[object], other: Sequence[object]) -> int:
    """Return how many tokens, or characters, two sequences have in common at their beginning."""
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def without_call_ids(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without the ids of its tool calls, which are drawn anew in every episode."""
    calls = [{**call, "id": ""} for call in message.get("tool_calls") or ()]
    plain = {key: value for key, value in message.items() if key != "tool_call_id"}
    return {**plain, "tool_calls": calls}
