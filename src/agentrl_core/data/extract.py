r"""Answers taken out of replies: `<answer>…</answer>` (or any other tag), `\boxed{…}` and `\fbox{…}`."""

from __future__ import annotations

import re


def extract_answer(text: str, schema: str = "answer") -> str:
    r"""Return the last answer in `text`, exactly as written; empty where there is none.

    `schema` is a tag name, or `boxed`: then the last `\boxed{…}`, or, only where there is no `\boxed{`, the last
    `\fbox{…}`. Braces nest; a brace that LaTeX escapes (`\{`) is text, and neither opens nor closes. What was
    begun and never ended is no answer.
    """
    return _boxed(text) if schema == "boxed" else _tagged(text, schema)


def _tagged(text: str, tag: str) -> str:
    end = text.rfind(f"</{tag}>")
    opening = f"<{tag}>"
    start = text.rfind(opening, 0, max(end, 0))
    return "" if start < 0 else text[start + len(opening) : end]


def _boxed(text: str) -> str:
    for opening in (r"\boxed{", r"\fbox{"):
        start = text.rfind(opening)
        if start >= 0:
            return _until_closed(text[start + len(opening) :])
    return ""


def _until_closed(text: str) -> str:
    depth = 1
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return text[: match.start()]
    return ""
