"""Compare the exact ids of a conversation with what the model's template would make of its messages.

They differ where a policy samples what no tokenizer would choose, and where a template rewrites history. The policy is
trained on the exact ids either way; drift says how far a server that renders the messages anew is from that.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

import attrs

from agentrl_core.errors import RequestError

if TYPE_CHECKING:
    from agentrl_core.chat.facade import Chat
    from agentrl_core.types import Episode, Interaction


@attrs.frozen(kw_only=True)
class Drift:
    """The first difference between a prompt's exact ids and its rendered ones."""

    tokens: int
    """Tokens of the exact prompt from the first difference on; 0 where there is none."""
    rendered: int
    """Those of the rendered one."""
    turn: int = 0
    """`seq` of the interaction to whose part of the prompt the first difference belongs."""
    token: int = 0
    """Position of the first difference in the exact prompt."""
    exact_text: str = ""
    """A few tokens from there on."""
    rendered_text: str = ""
    refused: str = ""
    """Why the template renders these messages not at all."""

    def __bool__(self) -> bool:
        return bool(self.tokens or self.rendered or self.refused)

    def __str__(self) -> str:
        if self.refused:
            return f"the template refuses these messages: {self.refused}"
        return (
            f"from turn {self.turn}, token {self.token}: sampled {self.exact_text!r}, "
            f"rendered anew {self.rendered_text!r}"
        )


_SHOWN_TOKENS = 6


def drift_of(chat: Chat, episode: Episode, interaction: Interaction) -> Drift:
    """Render the conversation of an interaction's prompt anew and find where that first differs from its exact ids.

    A prompt that came as it is, without messages, has no rendering that it could differ from.
    """
    if interaction.api == "completions":
        return Drift(tokens=0, rendered=0)
    lineage = episode.lineage(interaction)
    exact = [token for item in lineage for ids in (item.prompt_ids, item.output_ids) for token in ids]
    del exact[len(exact) - len(interaction.output_ids) :]
    messages = [message for item in lineage for message in (*item.messages, item.output)][:-1]
    try:
        rendered = chat.prompt_ids(messages, interaction.tools)
    except RequestError as error:
        return Drift(tokens=0, rendered=0, refused=str(error))
    pairs = zip_longest(exact, rendered)
    at = next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    if at is None:
        return Drift(tokens=0, rendered=0)
    return Drift(
        tokens=len(exact) - at,
        rendered=len(rendered) - at,
        turn=_turn_at(lineage, at),
        token=at,
        exact_text=chat.decode(exact[at : at + _SHOWN_TOKENS]),
        rendered_text=chat.decode(rendered[at : at + _SHOWN_TOKENS]),
    )


def _turn_at(lineage: tuple[Interaction, ...], at: int) -> int:
    """`seq` of the interaction that a position of the whole sequence belongs to."""
    end = 0
    for item in lineage:
        end += len(item.prompt_ids) + len(item.output_ids)
        if at < end:
            return item.seq
    return lineage[-1].seq
