"""Comparison of two mathematical texts with math-verify, to be called in a worker process.

On some short texts (`9^{9^{9^9}}`) sympy never ends, so the caller must be able to kill the process.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

_MARKED = re.compile(r"\$|\\\(|\\\[|\\boxed|\\begin\{(?:equation|align)")
"""Marks of mathematics in a text."""
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,} +[A-Za-z]{2,}")
"""Two words in a row: the text is a sentence, not a formula."""


def same_value(answer: str, references: Sequence[str], precision: int, strict: bool) -> bool:  # noqa: FBT001 (sent)
    """Return whether an answer means the same as any of the references. May never return."""
    from math_verify import verify  # type: ignore[import-untyped]  # it ships no types

    # math-verify logs every text that it cannot read, which is normal for answers of a policy.
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    found = _read(answer)
    return any(
        verify(_read(reference), found, float_rounding=precision, strict=strict, timeout_seconds=None)
        for reference in references
    )


def _read(text: str) -> list[Any]:
    """Return the possible meanings of a text, or the text itself if it has none."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    # A text without marks that is not a sentence is a formula as a whole.
    if not _MARKED.search(text) and not _PROSE.search(text):
        text = rf"\boxed{{{text}}}"
    kinds = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    meanings: list[Any] = parse(text, kinds, parsing_timeout=None)
    return meanings or [text]
