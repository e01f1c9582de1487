"""`sliding_window`: keep the beginning of a conversation and its newest turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen, validators

from agentrl_context.limits import Limited
from agentrl_context.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_core.api.compaction import AskPolicy, ContextUsage
    from agentrl_core.types import Message


@frozen(kw_only=True)
class SlidingWindow(Limited):
    """Context policy that drops whole turns from the middle: system prompt, task and the newest turns stay."""

    keep: int = field(default=4, validator=validators.ge(0))
    """Number of the newest turns that stay: a reply with its tool results and what the user said after it."""

    async def compact(
        self,
        messages: Sequence[Message],
        usage: ContextUsage,
        ask: AskPolicy,  # noqa: ARG002 - nothing is summarised
    ) -> list[Message] | None:
        """Return head and newest turns, if the prompt is above the limit and has more turns than these."""
        if not self.is_full(usage):
            return None
        found = Turns.of(messages)
        if len(found.turns) <= self.keep:
            return None
        return [*found.head, *found.newest(self.keep)]
