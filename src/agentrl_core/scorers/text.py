"""The scorers `exact_match` and `numeric`, which compare an answer with the reference as text or as a number."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl_core.api.scored_text import Of, references, scored_text
from agentrl_core.api.scoring import Score

if TYPE_CHECKING:
    from agentrl_core.api.scoring import ScoreRequest

_LONGEST = 20_000
"""Number of characters that are searched for numbers, from the end of an answer, where its conclusion is."""
_Scorer = TypeVar("_Scorer", bound=Callable[..., Any])


def _needing_reference(scorer: _Scorer) -> _Scorer:
    """Mark a scorer that cannot score tasks without an answer."""
    scorer.needs_reference = True  # type: ignore[attr-defined]  # an attribute of the function, as Scorer describes
    return scorer


@_needing_reference
def exact_match(request: ScoreRequest, *, casefold: bool = False, of: Of = "answer") -> float:
    """Return 1 if the answer equals the reference, or one of several references, else 0.

    White space around the texts does not count. Case counts, unless `casefold` is set.
    """
    answer, *expected = (text.strip() for text in (scored_text(request, of), *references(request)))
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
    r"""Return 1 if the last number of the answer equals that of a reference within `rel` or `abs`, else 0.

    Reads `1,234.5`, `-1e-3`, `2 x 10^5`, `3/4`, `1 1/2` and LaTeX fractions. The signs $ and % are skipped, so `50%` is
    50. Digits of a word or a unit are skipped, too: `42 m^2` and `42 cm2` are 42. A list of numbers at the end
    (`3, 4 or 5`) counts as a whole, because it does not tell which number is meant; it equals only the same list. An
    answer without a number is wrong. A reference without a number raises ValueError, which means no score.
    """
    expected = [last_numbers(text) for text in references(request)]
    if any(None in numbers or not numbers for numbers in expected):
        raise ValueError(
            f"task '{request.task.id}': expected a number in its answer, as numeric needs, found {request.reference!r}"
        )
    found = last_numbers(scored_text(request, of))
    read = ", ".join("not finite" if number is None else f"{number:.12g}" for number in found) or "no number"
    return Score(float(any(_close(found, numbers, rel, abs) for numbers in expected)), details={"read": read})


def last_numbers(text: str) -> tuple[float | None, ...]:
    """Return the last number in `text`, or the whole list that ends with it; None for a number that is not finite.

    A list of equal numbers counts as one number.
    """
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
    r"""Return the text with numbers in one notation: `1{,}234` and `1\,234` become `1,234`."""
    text = text[-_LONGEST:].replace("\N{MINUS SIGN}", "-").replace("\N{MULTIPLICATION SIGN}", "x")
    text = _BARE_FRACTION.sub(lambda found: f"{found[1]}{{{found[2] or found[3]}}}{{{found[4] or found[5]}}}", text)
    return _THOUSANDS.sub(",", text)


def _numbers(text: str) -> list[re.Match[str]]:
    """Return the numbers that stand alone; if all are parts of words, as in `A5`, return those."""
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
"""LaTeX fractions with or without braces: `\\frac12` needs none."""
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,?\\[!,]|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))")
_IN_A_WORD = re.compile(r"(?:(?<!\d)[A-Za-z_]|[A-WYZa-wyz_]|[A-Za-z)\]}][\^_]\{?)-?$")
"""Text before digits that belong to a word (`cm2`, but not `2x10`), to a power or to an index (`m^2`, `x_1`)."""
_BETWEEN_LISTED = re.compile(
    r"(?:[ \t$%*]*+(?:[,;/|&]|or|and|to|-)|[$%*]*+[ \t])[ \t$%*]*+(?:(?:or|and)[ \t]++[$*]*+)?", re.IGNORECASE
)
"""Separator between the items of a list of numbers; the end of a line is none.

The quantifiers are possessive, as in all patterns that read replies: a reply may end in thousands of blanks, which
`re` would otherwise divide among the quantifiers in every possible way.
"""
