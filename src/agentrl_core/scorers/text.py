"""Scorers that compare an answer with its reference as text or as a number."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from agentrl_core.scorers.reading import references

if TYPE_CHECKING:
    from agentrl_core.scoring import ScoreRequest

_Scorer = TypeVar("_Scorer", bound=Callable[..., float])


def _needing_reference(scorer: _Scorer) -> _Scorer:
    """Declare that tasks without an answer cannot be scored."""
    scorer.needs_reference = True  # type: ignore[attr-defined]  # an attribute of the function, as Scorer describes
    return scorer


@_needing_reference
def exact_match(request: ScoreRequest, *, casefold: bool = False) -> float:
    """Give 1 where the answer is the reference, or any of them, else 0.

    White space around them does not count; case does, unless `casefold`.
    """
    answer, *expected = (text.strip() for text in (request.answer, *references(request)))
    if casefold:
        answer, *expected = (text.casefold() for text in (answer, *expected))
    return float(answer in expected)


@_needing_reference
def numeric(request: ScoreRequest, *, rel: float = 1e-6, abs: float = 1e-9) -> float:  # noqa: A002  (pytest.approx's names)
    """Give 1 where the last numbers in answer and reference, or any of them, are equal within `rel` or `abs`, else 0.

    Reads `1,234.5`, `-1e-3`, `2 x 10^5`, `3/4` and LaTeX fractions; the signs $ and % are skipped, so `50%` is 50.
    An answer without a number is wrong; a reference without one raises, which is no score.
    """
    expected = [last_number(text) for text in references(request)]
    if None in expected:
        raise ValueError(
            f"task '{request.task.id}': its answer holds no number, numeric needs one: {request.reference!r}"
        )
    found = last_number(request.answer)
    return float(
        found is not None
        and any(number is not None and math.isclose(found, number, rel_tol=rel, abs_tol=abs) for number in expected)
    )


def last_number(text: str) -> float | None:
    """Return the last number in `text`; None where there is none, or where it is not finite."""
    text = text.replace("\N{MINUS SIGN}", "-").replace("\N{MULTIPLICATION SIGN}", "x")
    matches = list(_VALUE.finditer(text))
    if not matches:
        return None
    found = {name: part.replace(",", "") for name, part in matches[-1].groupdict().items() if part}
    value = float(found.get("numerator") or found["number"]) * float(f"1e{found.get('power', 0)}")
    divisor = float(found.get("denominator") or found.get("divisor", 1))
    if divisor == 0 or not math.isfinite(value):
        return None
    return (-value if found.get("sign") == "-" else value) / divisor


_UNSIGNED = r"(?:(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
_VALUE = re.compile(
    rf"""
    (?P<sign>(?<![\w)\]}}])[-+])?  # after a number or a bracket it is an operator
    (?:\\?\$)?
    (?:
        \\[dt]?frac\{{\s*(?P<numerator>[-+]?{_UNSIGNED})\s*\}}\{{\s*(?P<denominator>[-+]?{_UNSIGNED})\s*\}}
    |
        (?P<number>{_UNSIGNED})
        (?:
            \s*/\s*(?P<divisor>{_UNSIGNED})
        |
            \s*(?:[x*]|\\times|\\cdot)\s*10\s*(?:\^|\*\*)\s*\{{?(?P<power>[-+]?\d{{1,3}})
        )?
    )
    """,
    re.VERBOSE,
)
