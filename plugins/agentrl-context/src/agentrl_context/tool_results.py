"""`discard_tool_results`: replace the older results of tools by a placeholder; calls and reasoning stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen, validators

from agentrl_context.limits import Limited
from agentrl_context.turns import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_core.api.compaction import AskPolicy, ContextUsage
    from agentrl_core.types import Message


@frozen(kw_only=True)
class DiscardToolResults(Limited):
    """Context policy that empties all tool results but the newest `keep`."""

    keep: int = field(default=3, validator=validators.ge(0))
    """Number of the newest tool results that stay."""
    placeholder: str = field(default="[The result of this call was discarded.]", validator=validators.min_len(1))
    """Text in place of a discarded result; shorter results stay."""

    async def compact(
        self,
        messages: Sequence[Message],
        usage: ContextUsage,
        ask: AskPolicy,  # noqa: ARG002 - nothing is summarised
    ) -> list[Message] | None:
        """Return the conversation with placeholders, if the prompt is above the limit and a result can be discarded."""
        if not self.is_full(usage):
            return None
        results = [index for index, message in enumerate(messages) if message["role"] == "tool"]
        old = {index for index in results[: max(len(results) - self.keep, 0)] if self._is_longer(messages[index])}
        if not old:
            return None
        return [
            {**message, "content": self.placeholder} if index in old else message
            for index, message in enumerate(messages)
        ]

    def _is_longer(self, message: Message) -> bool:
        has_image = not isinstance(message.get("content"), str | None)
        return has_image or len(text_of(message)) > len(self.placeholder)
