"""Scorers that compare an answer with its reference as text or as a number."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl_core.api.reading import Of, judged_text, references
from agentrl_core.api.scoring import Score

if TYPE_CHECKING:
    from agentrl_core.api.scoring import ScoreRequest

_LONGEST = 20_000
"""Characters at the end of an answer in which numbers are looked for; what an answer concludes stands there."""
_Scorer = TypeVar("_Scorer", bound=Callable[..., Any])


def _needing_reference(scorer: _Scorer) -> _Scorer:
    """Declare that tasks without an answer cannot be scored."""
    scorer.needs_reference = True  # type: ignore[attr-defined]  # an attribute of the function, as Scorer describes
    return scorer


@_needing_reference
def exact_match(request: ScoreRequest, *, casefold: bool = False, of: Of = "answer") -> float:
    """Give 1 where the answer is the reference, or any of them, else 0.

    White space around them does not count; case does, unless `casefold`.
    """
    answer, *expected = (text.strip() for text in (judged_text(request, of), *references(request)))
    if casefold:
        answer, *expected = (text.casefold() for text in (answer, *expected))
    return float(answer in expected)


@_needing_reference
def numeric(
    request: ScoreRequest,
    *,
    rel: float = 1e-6,
    abs: float = 1e-9,  # noqa: A002  (pytest.approx's names)
    of: Of = "answer",
) -> Score:
    r"""Give 1 where the last numbers in answer and reference, or any of them, are equal within `rel` or `abs`, else 0.

    Reads `1,234.5`, `-1e-3`, `2 x 10^5`, `3/4`, `1 1/2` and LaTeX fractions; the signs $ and % are skipped, so `50%` is
    50, and so are digits that belong to a word or a unit: `42 m^2` and `42 cm2` are 42. Numbers listed at the end
    (`3, 4 or 5`) count as a whole: such an answer does not say which of them it means, and equals the same list only.
    An answer without a number is wrong; a reference without one raises, which is no score.
    """
    expected = [last_numbers(text) for text in references(request)]
    if any(None in numbers or not numbers for numbers in expected):
        raise ValueError(
            f"task '{request.task.id}': its answer holds no number, numeric needs one: {request.reference!r}"
        )
    found = last_numbers(judged_text(request, of))
    read = ", ".join("not finite" if number is None else f"{number:.12g}" for number in found) or "no number"
    return Score(float(any(_close(found, numbers, rel, abs) for numbers in expected)), details={"read": read})


def last_numbers(text: str) -> tuple[float | None, ...]:
    """Return the last number in `text`, or all of the list that it ends; None for one that is not finite."""
    text = _plain(text)
    matches = _numbers(text)
    values = [_value(matches[-1])] if matches else []
    for later, earlier in itertools.pairwise(reversed(matches)):
        if not _BETWEEN_LISTED.fullmatch(text[earlier.end() : later.start()]):
            break
        values.append(_value(earlier))
    return tuple(reversed(values)) if len(set(values)) > 1 else tuple(values[:1])


def _close(found: tuple[float | None, ...], expected: tuple[float | None, ...], rel: float, absolute: float) -> bool:
    return len(found) == len(expected) and all(
        one is not None and other is not None and math.isclose(one, other, rel_tol=rel, abs_tol=absolute)
        for one, other in zip(found, expected, strict=True)
    )


def _plain(text: str) -> str:
    r"""Return a text in which numbers are written in one way: `1{,}234` and `1\,234` as `1,234`."""
    text = text[-_LONGEST:].replace("\N{MINUS SIGN}", "-").replace("\N{MULTIPLICATION SIGN}", "x")
    text = _BARE_FRACTION.sub(lambda found: f"{found[1]}{{{found[2] or found[3]}}}{{{found[4] or found[5]}}}", text)
    return _THOUSANDS.sub(",", text)


def _numbers(text: str) -> list[re.Match[str]]:
    """Return the numbers that stand by themselves; where all are parts of words, as in `A5`, those."""
    matches = list(_VALUE.finditer(text))
    alone = [match for match in matches if not _IN_A_WORD.search(text[max(0, match.start() - 3) : match.start()])]
    return alone or matches


def _value(match: re.Match[str]) -> float | None:
    found = {name: part.replace(",", "") for name, part in match.groupdict().items() if part}
    value = float(found.get("numerator") or found["number"]) * float(f"1e{found.get('power', 0)}")
    divisor = float(found.get("denominator") or found.get("divisor", 1))
    try:
        value = value ** int(found.get("exponent", 1)) / divisor
    except (OverflowError, ZeroDivisionError):
        return None
    value += float(found.get("whole") or found.get("before", 0))
    if not math.isfinite(value):
        return None
    return -value if found.get("sign") == "-" else value


_UNSIGNED = r"(?:(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
_VALUE = re.compile(
    rf"""
    (?P<sign>(?<![\w)\]}}])[-+])?  # after a number or a bracket it is an operator
    (?:\\?\$)?
    (?:
        (?P<whole>\d+)?(?:(?<=\S)\s*+)?
        \\[dt]?frac\{{\s*(?P<numerator>[-+]?{_UNSIGNED})\s*\}}\{{\s*(?P<denominator>[-+]?{_UNSIGNED})\s*\}}
    |
        (?:(?P<before>\d+)\ (?=\d+\s*/\s*\d))?
        (?P<number>{_UNSIGNED})
        (?:
            \s*/\s*(?P<divisor>{_UNSIGNED})
        |
            \s*(?:[x*]|\\times|\\cdot)\s*10\s*(?:\^|\*\*)\s*\{{?(?P<power>[-+]?\d{{1,3}})
        |
            (?:\^|\*\*)\{{?(?P<exponent>[-+]?\d{{1,3}})
        )?
    )
    """,
    re.VERBOSE,
)
_BARE_FRACTION = re.compile(r"(\\[dt]?frac)\s?(?:(\d)|\{([^{}]{1,40})\})\s?(?:(\d)|\{([^{}]{1,40})\})")
"""Also `\\frac12`, where a digit needs no braces."""
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,?\\[!,]|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))")
_IN_A_WORD = re.compile(r"(?:(?<!\d)[A-Za-z_]|[A-WYZa-wyz_]|[A-Za-z)\]}][\^_]\{?)-?$")
"""Before digits of a word (`cm2`; not `2x10`), of a power or of an index (`m^2`, `x_1`)."""
_BETWEEN_LISTED = re.compile(
    r"(?:[ \t$%*]*+(?:[,;/|&]|or|and|to|-)|[$%*]*+[ \t])[ \t$%*]*+(?:(?:or|and)[ \t]++[$*]*+)?", re.IGNORECASE
)
"""Between the items of a list of numbers; a line's end is not.

Possessive, as all that reads replies: they may end in thousands of blanks, which `re` would share out in every way.
"""
