"""`ContextPolicy`, the protocol of context engineering: shorten a long history before the policy sees it.

It works in the gateway, so for agents in every framework, and without a change of the agent: the agent goes on to send
its whole history, and the gateway replaces the part of it that was compacted. A compacted history begins a new branch
of the record's tree of calls. What the policy sampled before stays as it was sampled and is trained as such; so is a
summary that the policy itself writes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import attrs

if TYPE_CHECKING:
    from agentrl_core.types import Message


@attrs.frozen(kw_only=True)
class ContextUsage:
    """Size of a history, in tokens of the policy."""

    prompt_tokens: int
    """Prompt of the call that is about to be made, as the history is now."""
    context_length: int
    """Longest sequence, prompt and reply together."""
    max_tokens: int
    """Longest reply to this call."""
    calls: int
    """Calls of the record's policy so far."""
    compactions: int
    """Compactions of this conversation so far."""


AskPolicy: TypeAlias = "Callable[[Sequence[Message]], Awaitable[Message]]"
"""Let the policy answer a conversation within the record, such as a request for a summary; this call is recorded and
trained like the agent's own, and offers no tools."""


class ContextPolicy(Protocol):
    """Rule for when and how a conversation is shortened; one object serves all episodes, concurrently.

    class LastTurns:
        def __init__(self, *, keep: int = 6, max_prompt_tokens: int = 8000):
            self.keep, self.max_prompt_tokens = keep, max_prompt_tokens

        async def compact(self, messages, usage, ask):
            if usage.prompt_tokens <= self.max_prompt_tokens:
                return None
            return [*messages[:2], *messages[-self.keep :]]
    """

    async def compact(
        self, messages: Sequence[Message], usage: ContextUsage, ask: AskPolicy
    ) -> Sequence[Message] | None:
        """Return the messages that replace `messages` for this call and those after it; None to leave them as they are.

        `messages` are the whole request in OpenAI's shape, what was compacted before already replaced. The result must
        be a valid conversation: a tool message needs the assistant message with its call before it.
        """
        ...
