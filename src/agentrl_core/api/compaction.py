"""`ContextPolicy`, the protocol of context engineering: shorten the history of a long episode before it is a prompt.

It works in the gateway, so for agents in every framework, and without a change of the agent: the agent goes on to send
its whole history, and the gateway replaces the part of it that was compacted. A compacted history begins a new branch
of the record's tree of calls. What the policy sampled before stays as it was sampled and is trained as such; so is a
summary that the policy itself writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import attrs

if TYPE_CHECKING:
    from agentrl_core.types import Interaction, Message


COMPACTION: Final = "context_policy"
"""Key of `Interaction.requested` under which the gateway notes what the context policy did for a call: the policy's
`name`, and for a call that begins a compacted branch the fields of `CompactionNote`."""


@attrs.frozen(kw_only=True)
class CompactionNote:
    """Facts about a compaction, of the call that begins the compacted branch."""

    name: str
    """Name of the context policy in the config."""
    number: int
    """Number of the compaction in the record, from 1; several calls may begin with one compaction's result."""
    compactions: int
    """Number of compactions of the conversation, this one included."""
    messages: tuple[int, int]
    """Number before and after."""
    tokens: tuple[int, int]
    """Prompt tokens before and after."""
    context_length: int
    """Context length that the policy was told."""

    @property
    def tokens_discarded(self) -> int:
        """Number of prompt tokens by which the history got shorter."""
        return self.tokens[0] - self.tokens[1]


def compaction_of(interaction: Interaction) -> CompactionNote | None:
    """Return the compaction with whose result a call begins; None for other calls, also those later in its branch."""
    note = interaction.requested.get(COMPACTION)
    if not isinstance(note, Mapping) or "number" not in note:
        return None
    try:
        facts = {**note, "messages": tuple(note["messages"]), "tokens": tuple(note["tokens"])}
        return CompactionNote(**facts)
    except (KeyError, TypeError):  # an agent sent a field of this name, or another version of this package wrote it
        return None


@attrs.frozen(kw_only=True)
class ContextUsage:
    """Size of a history, in tokens of the policy."""

    prompt_tokens: int
    """Prompt of the call that is about to be made, as the history is now; a lower bound above `context_length`."""
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
