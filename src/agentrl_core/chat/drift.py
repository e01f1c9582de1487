"""Compare the exact ids of a conversation with what the model's template would make of its messages.

They differ where a policy samples what no tokenizer would choose, and where a template rewrites history. The policy is
trained on the exact ids either way; drift says how far a server that renders the messages anew is from that.
"""

from __future__ import annotations

import unicodedata
from itertools import zip_longest
from typing import TYPE_CHECKING

import attrs

from agentrl_core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """The sampled text as far as the two differ; all of it where they do not."""
    rendered_text: str = ""
    exact_ids: tuple[int, ...] = ()
    """The first ids from there on: all that differs where one text has two tokenizations."""
    rendered_ids: tuple[int, ...] = ()
    refused: str = ""
    """Why the template renders these messages not at all."""

    def __bool__(self) -> bool:
        return bool(self.tokens or self.rendered or self.refused)

    def __str__(self) -> str:
        if self.refused:
            return f"the template refuses these messages: {self.refused}"
        where = f"from turn {self.turn}, token {self.token}"
        if self.exact_text == self.rendered_text:
            return (
                f"{where}: one text, other tokens: sampled {_listed(self.exact_ids)}, "
                f"rendered anew {_listed(self.rendered_ids)}"
            )
        show = ascii if _look_alike(self.exact_text, self.rendered_text) else repr
        return f"{where}: sampled {show(self.exact_text)}, rendered anew {show(self.rendered_text)}"


_SHOWN_TOKENS = 6
_SHOWN_CHARS = 40
"""Of a text, from where it differs on."""
_SHOWN_BEFORE = 12
"""Characters before that."""


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
    exact_text, rendered_text = _texts(chat, exact[at:], rendered[at:])
    return Drift(
        tokens=len(exact) - at,
        rendered=len(rendered) - at,
        turn=_turn_at(lineage, at),
        token=at,
        exact_text=exact_text,
        rendered_text=rendered_text,
        exact_ids=tuple(exact[at : at + _SHOWN_TOKENS]),
        rendered_ids=tuple(rendered[at : at + _SHOWN_TOKENS]),
    )


def _texts(chat: Chat, exact: Sequence[int], rendered: Sequence[int]) -> tuple[str, str]:
    """Return the places at which two sequences read differently, however far behind their first other token that is."""
    count = _SHOWN_TOKENS
    while True:
        ours, theirs = chat.decode(exact[:count]), chat.decode(rendered[:count])
        same = _num_common(ours, theirs)
        whole = count >= max(len(exact), len(rendered))
        # A window may end in the middle of a character, which then reads as another one.
        if whole or (same < min(len(ours), len(theirs)) and "\ufffd" not in (ours[same], theirs[same])):
            break
        count *= 2
    if ours == theirs:
        return _cut(ours, 0), _cut(theirs, 0)
    start = max(0, same - _SHOWN_BEFORE)
    return _cut(ours, start), _cut(theirs, start)


def _num_common(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (ours, theirs) in pairs if ours != theirs), min(len(one), len(other)))


def _cut(text: str, start: int) -> str:
    shown = text[start : start + _SHOWN_BEFORE + _SHOWN_CHARS]
    return f"{'…' if start else ''}{shown}{'…' if start + len(shown) < len(text) else ''}"


def _look_alike(one: str, other: str) -> bool:
    """Whether the eye could not tell two different texts apart, as two ways to write `é`."""
    one, other = one.removesuffix("…"), other.removesuffix("…")
    forms = unicodedata.normalize("NFKC", one), unicodedata.normalize("NFKC", other)
    return _is_beginning(*forms) and not _is_beginning(one, other)


def _is_beginning(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _listed(ids: Sequence[int]) -> str:
    return f"[{', '.join(map(str, ids))}, …]"


def _turn_at(lineage: tuple[Interaction, ...], at: int) -> int:
    """`seq` of the interaction that a position of the whole sequence belongs to."""
    end = 0
    for item in lineage:
        end += len(item.prompt_ids) + len(item.output_ids)
        if at < end:
            return item.seq
    return lineage[-1].seq
