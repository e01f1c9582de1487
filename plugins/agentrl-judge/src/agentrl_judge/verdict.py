"""Schema of a judge's reply, and the strict parser for it.

A verdict is a field of one JSON object. It is never searched for in a text, because the text may quote the answer.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, TypeAlias

import attrs

Scale: TypeAlias = Literal["binary", "graded"]
"""`binary`: correct is 1, incorrect 0. `graded`: any number from 0 to 1."""

_FIELDS = {"binary": "verdict", "graded": "score"}
_VALUES = {"correct": 1.0, "incorrect": 0.0}
_FORMS = {
    "binary": '{"reasoning": "<two sentences at most>", "verdict": "correct" or "incorrect"}',
    "graded": '{"reasoning": "<two sentences at most>", "score": <a number from 0 to 1>}',
}
_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL)


class GarbageError(Exception):
    """A reply is not a verdict; the message says why."""


@attrs.frozen
class Opinion:
    """A judge's verdict on an answer."""

    value: float
    """Score from 0 to 1."""
    reasoning: str


def response_format(scale: Scale) -> dict[str, Any]:
    """Return the `response_format` of OpenAI's API that constrains a reply to the schema."""
    field = _FIELDS[scale]
    kind = {"type": "string", "enum": list(_VALUES)} if scale == "binary" else {"type": "number"}
    schema = {
        "type": "object",
        "properties": {"reasoning": {"type": "string"}, field: kind},
        "required": ["reasoning", field],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": schema}}


def instruction(scale: Scale) -> str:
    """Return the sentence of the prompt that asks for the schema, for servers that cannot enforce it."""
    return f"Reply with one JSON object of this form and nothing else: {_FORMS[scale]}"


def read_verdict(reply: str, scale: Scale) -> Opinion:
    """Read a reply that is one JSON object with the two fields. Raises `GarbageError` for anything else.

    A `<think>` block before the object and a code fence around it are removed first. JSON inside of prose does not
    count, because it may be a quotation of the answer.
    """
    text = reply.strip()
    # The last end tag counts, because the thoughts may quote one together with a verdict.
    if text.startswith("<think>"):
        text = text.rpartition("</think>")[2].strip()
    if fenced := _FENCE.fullmatch(text):
        text = fenced[1]
    try:
        found = json.loads(text, object_pairs_hook=_without_twins, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise GarbageError(f"not one JSON object: {error}") from error
    field = _FIELDS[scale]
    if not isinstance(found, dict) or found.keys() != {"reasoning", field}:
        keys = sorted(found) if isinstance(found, dict) else type(found).__name__
        raise GarbageError(f"expected the fields reasoning and {field}, found {keys}")
    if not isinstance(found["reasoning"], str):
        raise GarbageError("the field reasoning is not a text")
    return Opinion(_value(found[field], scale), found["reasoning"])


def _value(found: Any, scale: Scale) -> float:
    if scale == "binary":
        if not isinstance(found, str) or found not in _VALUES:
            raise GarbageError(f"expected the verdict correct or incorrect, found {found!r:.60}")
        return _VALUES[found]
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= 1:
        raise GarbageError(f"expected a score from 0 to 1, found {found!r:.60}")
    return float(found)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object with a duplicate field: `json` would silently take the last one."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field occurs twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
