r"""Answers taken out of replies: `<answer>…</answer>` (or any other tag), `\boxed{…}` and `\fbox{…}`, or all of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from agentrl_core.api.reasoning import REASONING_FORMATS

if TYPE_CHECKING:
    from agentrl_core.api.scoring import AnswerFrom

DEFAULT_SCHEMA = "answer"
"""The tag that is looked for where a task names no `answer_schema`."""


@attrs.frozen(kw_only=True)
class FoundAnswer:
    """The part of a reply that a scorer compares with the reference."""

    text: str
    """Exactly as written; empty where there is none."""
    source: AnswerFrom
    """As `ScoreRequest.answer_from` has it."""


def find_answer(reply: str, schema: str = "") -> FoundAnswer:
    """Return what a reply says after its thoughts: the last text inside `schema`, a tag name or `boxed`.

    Without a schema that is the text in `<answer>` tags, and of a reply that has none the whole reply. Where the
    schema is named and the reply lacks it, there is no answer.
    """
    said = without_thoughts(reply)
    inside = _inside(said, schema or DEFAULT_SCHEMA)
    if inside is not None:
        return FoundAnswer(text=inside, source="schema")
    return FoundAnswer(text="", source="nowhere") if schema else FoundAnswer(text=said.strip(), source="reply")


def extract_answer(text: str, schema: str = DEFAULT_SCHEMA) -> str:
    r"""Return the last answer in `text`, exactly as written; empty where there is none.

    `schema` is a tag name, or `boxed`: then the last `\boxed{…}`, or, only where there is no `\boxed{`, the last
    `\fbox{…}`. Braces nest; a brace that LaTeX escapes (`\{`) is text, and neither opens nor closes. What was
    begun and never ended is no answer.
    """
    return _inside(text, schema) or ""


def shown(schema: str) -> str:
    r"""Return a schema as a reply writes it: `<answer>…</answer>`, `\boxed{…}`."""
    schema = schema or DEFAULT_SCHEMA
    return r"\boxed{…}" if schema == "boxed" else f"<{schema}>…</{schema}>"


def without_thoughts(text: str) -> str:
    """Return a reply without what stands between the tags of thoughts; thoughts that never ended go to the end."""
    for opening, closing in _THOUGHTS:
        if opening in text or closing in text:
            text = re.sub(rf"{re.escape(opening)}.*?(?:{re.escape(closing)}|\Z)", "", text, flags=re.DOTALL)
            text = text.rpartition(closing)[2]  # templates may open the thoughts inside the prompt
    return text


_THOUGHTS = tuple(dict.fromkeys((item.open, item.close) for item in REASONING_FORMATS.values()))


def _inside(text: str, schema: str) -> str | None:
    return _boxed(text) if schema == "boxed" else _tagged(text, schema)


def _tagged(text: str, tag: str) -> str | None:
    """Return what stands in the last pair of tags; a closing one that is doubled, or spoken of, makes no pair."""
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
