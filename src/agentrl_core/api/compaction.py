"""`ContextPolicy`, the protocol of context engineering: shorten the history of a long episode before the policy sees it.

It works in the gateway, so for agents in every framework, and without a change of the agent: the agent goes on to send
its whole history, and the gateway replaces the part of it that was compacted. A compacted history begins a new branch
of the record's tree of calls. What the policy sampled before stays as it was sampled and is trained as such; so is a
summary that the policy itself writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

import attrs

if TYPE_CHECKING:
    from agentrl_core.types import Message


COMPACTION: Final = "context_policy"
"""Key of `Interaction.requested` under which the gateway notes what the context policy did for a call: the policy's
`name`, and for a call that begins a compacted branch also `number` (from 1 within the record), `messages` and `tokens`
(before and after), `compactions` of its conversation so far and the policy's `context_length`."""


@attrs.frozen(kw_only=True)
class ContextUsage:
    """Size of a history, in tokens of the policy."""

    prompt_tokens: int
    """Prompt of the call that is about to be made, as the history is now. Above `context_length` it is a lower bound."""
    context_length: int
    """Longest sequence, prompt and reply together."""
    max_tokens: int
    """Longest reply to this call."""
    calls: int
    """Calls of the record's policy so far."""
    compactions: int
    """Compactions of this conversation so far."""


class AskPolicy(Protocol):
    """Question of a context policy, such as a request for a summary: a recorded call within the record."""

    async def __call__(
        self, messages: Sequence[Message], *, max_tokens: int | None = None, upstream: str = ""
    ) -> Message:
        """Return the answer to a conversation, by the policy or by the upstream of that name (`gateway.upstreams`).

        An answer of the policy is trained like the agent's own calls; one of an upstream never is. Tool calls in it
        stay text. A conversation that begins with the messages which `compact` got continues their exact tokens.
        Raises `ContextLengthError` if the conversation is too long; it has `prompt_tokens` and `context_length`.
        """
        ...


class ContextPolicy(Protocol):
    """Rule for when and how a conversation is shortened; one object serves all episodes, concurrently.

    It may have an attribute `upstreams`, the names of the upstreams that it asks, which are checked before a run.

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
        be a valid conversation: a tool message needs the assistant message with its call before it. Messages that are
        kept are best returned as they are; none may be changed in place. Errors of `ask` may pass through.
        """
        ...
