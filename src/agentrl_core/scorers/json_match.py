"""The scorer `json_match`: compares the JSON in an answer with the JSON of the reference."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

import attrs
from attrs import field, validators

from agentrl_core.api.scored_text import Of, references, scored_text

if TYPE_CHECKING:
    from agentrl_core.api.scoring import ScoreRequest
    from agentrl_core.types import Task

_FENCED = re.compile(r"```[ \t]*+([A-Za-z0-9_+-]*+)[ \t]*+\n(.*?)```", re.DOTALL)
_OPENING = re.compile(r"""\{\s*["}]|\[\s*["\[\]{}\dtfn-]""")
_EFFORT = 4_000_000
"""Number of characters read in search of JSON within text; characters that are read again count again.

A text of opening brackets would otherwise take quadratic time.
"""

_NOTHING = object()
"""Marker for missing JSON or a missing field; it equals no JSON value, unlike None."""


@attrs.frozen(kw_only=True)
class JsonMatch:
    """Scorer that compares the answer's JSON with the reference, the task's `answer`, which is JSON too.

    The answer's JSON is the whole answer, or else the last fenced block that is JSON, or else the last object or list
    in the text. `match` selects the comparison:

    - `exact`: both are equal.
    - `subset`: every field of the reference is in the answer with its value, at any depth; the answer may have more.
    - `share`: share of the reference's values, at any depth, that the answer has at the same place.

    Numbers are equal within `rel` or `abs`: 1 equals 1.0, but not true. An answer without JSON is wrong. A list is one
    reference; with `any_of` it is a list of references.
    """

    match: Literal["exact", "subset", "share"] = "exact"
    any_of: bool = False
    rel: float = field(default=1e-6, validator=validators.ge(0))
    abs: float = field(default=1e-9, validator=validators.ge(0))
    of: Of = "answer"
    needs_reference: ClassVar[bool] = True

    def check_task(self, task: Task) -> None:
        """Raise ValueError if the task's answer is not JSON."""
        if task.answer is not None:
            self._expected(task.answer)

    def __call__(self, request: ScoreRequest) -> float:
        """Return a value from 0 to 1."""
        # Called for its ValueError; the JSON itself is read from the reference's text.
        references(request)
        found = find_json(scored_text(request, self.of))
        expected = self._expected(request.reference or "")
        if found is _NOTHING:
            return 0.0
        return max(self._value(found, item) for item in expected)

    def _expected(self, reference: str) -> Sequence[Any]:
        value = _parsed(reference)
        if value is _NOTHING:
            raise ValueError(f"answer: expected JSON, found {reference!r:.80}")
        if not self.any_of:
            return [value]
        if not isinstance(value, list) or not value:
            raise ValueError(f"answer: expected a list of references (any_of), found {reference!r:.80}")
        return value

    def _value(self, found: Any, expected: Any) -> float:
        if self.match != "share":
            return float(self._agree(found, expected))
        leaves = list(_leaves(expected))
        right = sum(self._agree(_at(found, path), leaf) for path, leaf in leaves)
        return right / len(leaves)

    def _agree(self, found: Any, expected: Any) -> bool:
        if isinstance(expected, dict):
            if not isinstance(found, dict) or (self.match == "exact" and len(found) != len(expected)):
                return False
            return all(self._agree(found.get(key, _NOTHING), value) for key, value in expected.items())
        if isinstance(expected, list):
            if not isinstance(found, list) or len(found) != len(expected):
                return False
            return all(self._agree(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
        if _is_number(expected):
            return _is_number(found) and _close(found, expected, self.rel, self.abs)
        return type(found) is type(expected) and bool(found == expected)


def find_json(text: str) -> Any:
    """Return the JSON of an answer by the rules of `JsonMatch`; a marker that equals no JSON value if there is none."""
    whole = _parsed(text)
    if whole is not _NOTHING:
        return whole
    for block in reversed(_FENCED.findall(text)):
        value = _parsed(block[1])
        if value is not _NOTHING:
            return value
    last, position, effort = _NOTHING, 0, 0
    while effort < _EFFORT and (opening := _OPENING.search(text, position)):
        start = opening.start()
        try:
            last, position = _DECODER.raw_decode(text, start)
        except json.JSONDecodeError as error:
            # To build the error, Python counts the lines before it, which is fast, but not free: hence pos // 16.
            position, effort = start + 1, effort + error.pos - start + 1 + error.pos // 16
        # Numbers of too many digits or too deep nesting; the error does not tell how much was read.
        except (ValueError, RecursionError):
            position, effort = start + 1, effort + (_EFFORT // 50)
    return last


def _parsed(text: str) -> Any:
    try:
        return _DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        return _NOTHING


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield the innermost values of a JSON value, each with its path; an empty object or list counts as one."""
    if isinstance(value, dict | list) and value:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(item, (*path, key))
    else:
        yield path, value


def _at(value: Any, path: Sequence[str | int]) -> Any:
    for key in path:
        if isinstance(value, dict) and isinstance(key, str):
            value = value.get(key, _NOTHING)
        elif isinstance(value, list) and isinstance(key, int) and key < len(value):
            value = value[key]
        else:
            return _NOTHING
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _close(found: float, expected: float, rel: float, absolute: float) -> bool:
    try:
        return math.isclose(found, expected, rel_tol=rel, abs_tol=absolute)
    # A whole number that is too large for a float.
    except OverflowError:
        return found == expected
