"""Two mathematical texts compared with math-verify; it can take for ever, so it is called in other processes."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

_MARKED = re.compile(r"\$|\\\(|\\\[|\\boxed|\\begin\{(?:equation|align)")
"""Says where in a text the mathematics is."""
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,} +[A-Za-z]{2,}")


def same_value(answer: str, references: Sequence[str], precision: int, strict: bool) -> bool:  # noqa: FBT001 (sent)
    """Whether an answer equals any of the references."""
    from math_verify import verify  # type: ignore[import-untyped]  # it ships no types

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # what cannot be read is no event
    found = _read(answer)
    return any(
        verify(_read(reference), found, float_rounding=precision, strict=strict, timeout_seconds=None)
        for reference in references
    )


def _read(text: str) -> list[Any]:
    """Return the meanings of a text: all of it, unless it says where in it the mathematics is."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    if not _MARKED.search(text) and not _PROSE.search(text):
        text = rf"\boxed{{{text}}}"
    kinds = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    meanings: list[Any] = parse(text, kinds, parsing_timeout=None)
    return meanings or [text]
