r"""Extraction of the answer from a reply: the text in `<answer>…</answer>` or another tag, or in `\boxed{…}`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from agentrl_core.api.reasoning import REASONING_FORMATS

if TYPE_CHECKING:
    from agentrl_core.api.scoring import AnswerFrom

DEFAULT_SCHEMA = "answer"
"""Tag of the answer for tasks without an `answer_schema`."""


@attrs.frozen(kw_only=True)
class FoundAnswer:
    """The part of a reply that a scorer compares with the reference."""

    text: str
    """Answer exactly as written; empty if there is none."""
    source: AnswerFrom
    """Origin of the answer, as in `ScoreRequest.answer_from`."""


def find_answer(reply: str, schema: str = "") -> FoundAnswer:
    """Return the answer of a reply without its thoughts: the last text inside `schema`, a tag name or `boxed`.

    Without a schema, the answer is the text in `<answer>` tags, or the whole reply if it has no such tags. If a schema
    is given and the reply does not contain it, there is no answer.
    """
    said = without_thoughts(reply)
    inside = _inside(said, schema or DEFAULT_SCHEMA)
    if inside is not None:
        return FoundAnswer(text=inside, source="schema")
    return FoundAnswer(text="", source="nowhere") if schema else FoundAnswer(text=said.strip(), source="reply")


def extract_answer(text: str, schema: str = DEFAULT_SCHEMA) -> str:
    r"""Return the last answer in `text`, exactly as written; empty if there is none.

    `schema` is a tag name, or `boxed` for the last `\boxed{…}`; the last `\fbox{…}` counts only if there is no
    `\boxed{`. Braces nest; an escaped brace (`\{`) is text. An answer without its end is no answer.
    """
    return _inside(text, schema) or ""


def shown(schema: str) -> str:
    r"""Return the form of a schema for messages to the user: `<answer>…</answer>`, `\boxed{…}`."""
    schema = schema or DEFAULT_SCHEMA
    return r"\boxed{…}" if schema == "boxed" else f"<{schema}>…</{schema}>"


def without_thoughts(text: str) -> str:
    """Return a reply without its thoughts; thoughts without a closing tag extend to the end of the reply."""
    for opening, closing in _THOUGHTS:
        if opening in text or closing in text:
            text = re.sub(rf"{re.escape(opening)}.*?(?:{re.escape(closing)}|\Z)", "", text, flags=re.DOTALL)
            # Some templates open the thoughts in the prompt, so the reply has only the closing tag.
            text = text.rpartition(closing)[2]
    return text


# Several reasoning formats share their tags.
_THOUGHTS = tuple(dict.fromkeys((item.open, item.close) for item in REASONING_FORMATS.values()))


def _inside(text: str, schema: str) -> str | None:
    return _boxed(text) if schema == "boxed" else _tagged(text, schema)


def _tagged(text: str, tag: str) -> str | None:
    """Return the text in the last pair of tags, None without a pair."""
    # The last opening tag before the last closing one: a closing tag that is repeated or only mentioned is no pair.
    opening, closing = f"<{tag}>", f"</{tag}>"
    start = text.rfind(opening, 0, max(text.rfind(closing), 0))
    return None if start < 0 else text[start + len(opening) : text.index(closing, start)]


def _boxed(text: str) -> str | None:
    for opening in (r"\boxed{", r"\fbox{"):
        start = text.rfind(opening)
        if start >= 0:
            return _until_closed(text[start + len(opening) :])
    return None


def _until_closed(text: str) -> str | None:
    depth = 1
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return text[: match.start()]
    return None
