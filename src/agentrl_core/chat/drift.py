"""Compare the exact token ids of a conversation with those that the template gives for its messages.

The two differ if the policy sampled tokens that the tokenizer would not choose, or if the template rewrites history.
Training uses the exact ids in either case. Drift measures how far a server that re-renders the messages is from them.
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
    """First difference between a prompt's exact ids and its re-rendered ids."""

    tokens: int
    """Tokens of the exact prompt from the first difference on; 0 if the two are equal."""
    rendered: int
    """Tokens of the re-rendered prompt from the first difference on."""
    turn: int = 0
    """`seq` of the interaction that the first differing token belongs to."""
    token: int = 0
    """Position of the first difference in the exact prompt."""
    exact_text: str = ""
    """Excerpt of the sampled text around the first character that differs; from the first differing token if none
    does."""
    rendered_text: str = ""
    """The same excerpt of the re-rendered text."""
    exact_ids: tuple[int, ...] = ()
    """First ids from the difference on; the only difference if one text has two tokenizations."""
    rendered_ids: tuple[int, ...] = ()
    refused: str = ""
    """Reason why the template refuses to render these messages; empty if it does not."""

    def __bool__(self) -> bool:
        return bool(self.tokens or self.rendered or self.refused)

    def __str__(self) -> str:
        if self.refused:
            return f"the template refuses these messages: {self.refused}"
        where = f"from turn {self.turn}, token {self.token}"
        if self.exact_text == self.rendered_text:
            return (
                f"{where}: same text, other tokens: sampled {_listed(self.exact_ids)}, "
                f"re-rendered {_listed(self.rendered_ids)}"
            )
        # Show escapes if the two would look the same on screen.
        show = ascii if _look_alike(self.exact_text, self.rendered_text) else repr
        return f"{where}: sampled {show(self.exact_text)}, re-rendered {show(self.rendered_text)}"


_SHOWN_TOKENS = 6
_SHOWN_CHARS = 40
"""Characters of an excerpt from the first difference on."""
_SHOWN_BEFORE = 12
"""Characters of an excerpt before the first difference."""


def drift_of(chat: Chat, episode: Episode, interaction: Interaction) -> Drift:
    """Re-render the conversation of an interaction's prompt and return its first difference from the exact ids.

    The prompt of a raw completion has no messages to render, so it never differs.
    """
    if interaction.api == "completions":
        return Drift(tokens=0, rendered=0)
    lineage = episode.lineage(interaction)
    exact = [token for item in lineage for ids in (item.prompt_ids, item.output_ids) for token in ids]
    # The prompt ends where the interaction's own output begins.
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
    """Return excerpts of both texts around the first character that differs.

    It may lie many tokens after the first token that differs, because one text has several tokenizations. So the
    decoded window is doubled until a character differs.
    """
    count = _SHOWN_TOKENS
    while True:
        ours, theirs = chat.decode(exact[:count]), chat.decode(rendered[:count])
        same = _num_common(ours, theirs)
        whole = count >= max(len(exact), len(rendered))
        # A window may end in the middle of a multi-byte character, which decodes to U+FFFD: not a real difference.
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
    """Return whether two different texts look the same on screen, like the two encodings of `é`."""
    one, other = one.removesuffix("…"), other.removesuffix("…")
    forms = unicodedata.normalize("NFKC", one), unicodedata.normalize("NFKC", other)
    return _is_beginning(*forms) and not _is_beginning(one, other)


def _is_beginning(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _listed(ids: Sequence[int]) -> str:
    return f"[{', '.join(map(str, ids))}, …]"


def _turn_at(lineage: tuple[Interaction, ...], at: int) -> int:
    """Return the `seq` of the interaction that position `at` of the whole sequence belongs to."""
    end = 0
    for item in lineage:
        end += len(item.prompt_ids) + len(item.output_ids)
        if at < end:
            return item.seq
    return lineage[-1].seq
