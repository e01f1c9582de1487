"""Checks of the tools that servers list and of the arguments of calls, in bounded time whatever both contain.

The policy writes the arguments, and the schema comes from a server that may be hostile. Where the cost is plainly
linear, the check is done on the event loop; else in a worker process that is killed at the time limit. A thread would
not do: the validator holds the interpreter's lock, and nothing ends it (60 s for an enum of 2,000 objects and an array
of 100,000).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson
from jsonschema_rs import ValidationError, validator_for

from agentrl_core.api.tools import ToolSpec
from agentrl_core.tools.schemas import MOST_BYTES, one_line, to_json, too_long

if TYPE_CHECKING:
    from jsonschema_rs import Validator

_MOST_SCHEMA_BYTES = 2**18
"""Longest schema of a tool."""
_MOST_SCHEMAS = 4096
"""Compiled schemas that are kept, in this process and in a worker."""
_INLINE_COST = 10**6
"""Bytes of the schema times bytes of the arguments up to which the event loop checks: 20 ms at worst (`maximum` of
numbers such as 1e300; strings take microseconds)."""
_COMPILING = 64
"""Bytes of arguments that cost as much as compiling the schema."""
_LIMIT_S = 2.0
"""Longest time of a check in a worker; one that is no attack takes less than 1 ms."""
_MEMORY_MB = 512 if sys.platform == "linux" else None
"""Memory that a check in a worker may use."""
_POOL = "tool-checks"
"""Workers of these checks alone: a scorer that hangs holds up no tool call."""
_LONGEST_VALUE = 80
"""Characters that a message quotes of a wrong value."""

_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
"""Keywords that repeat parts of a schema, any number of times."""
_EXPRESSIONS = frozenset({"pattern", "patternProperties"})
"""Keywords with regular expressions, which can be far larger than their texts."""
_COSTLY = _REFERENCES | _EXPRESSIONS | {"uniqueItems", "unevaluatedItems", "unevaluatedProperties", "multipleOf"}
"""Keywords whose checks may take longer than the product of the lengths tells."""
_BY_NAME = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose values have names for keys, not keywords."""
_DIALECTS = ("draft-04", "draft-06", "draft-07", "2019-09", "2020-12")
"""Parts of the values of `$schema` that the validator knows; a schema in another dialect is read as 2020-12."""


async def problem_of_specs(specs: Iterable[Any]) -> str:
    """Return what is wrong with a server's list of tools; empty for nothing."""
    names: set[str] = set()
    for spec in specs:
        if not isinstance(spec, ToolSpec):
            return f"lists {type(spec).__name__} {one_line(repr(spec), 60)} as a tool; expected agentrl_core's ToolSpec"
        if not isinstance(spec.name, str) or not spec.name:
            return f"lists a tool without a name: {one_line(repr(spec), 100)}"
        if spec.name in names:
            return f"lists the tool '{spec.name}' twice"
        names.add(spec.name)
        if problem := await _problem_of_schema(spec.parameters):
            return (
                f"has an invalid schema of the arguments of '{spec.name}': {problem}; correct it on the server, or "
                "leave the server out of tools.servers"
            )
    return ""


async def _problem_of_schema(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return f"expected an object, found {type(schema).__name__}"
    if schema.get("type", "object") != "object":
        return f"expected the type object, found {one_line(repr(schema['type']), 60)}"
    try:
        text = to_json(schema, orjson.OPT_SORT_KEYS)
    except TypeError as error:
        return f"it is no JSON: {one_line(str(error))}"
    if len(text) > _MOST_SCHEMA_BYTES:
        return f"it has {len(text):,} bytes, more than the {_MOST_SCHEMA_BYTES:,} allowed"
    if text in _compiled:
        return ""
    problem = await _bounded(_compiling_problem, text)
    if not problem:
        if len(_compiled) >= _MOST_SCHEMAS:
            _compiled.clear()
        _compiled.add(text)
    return problem


_compiled: set[bytes] = set()
"""Schemas that were found to be right; most episodes list the same tools again."""


async def problem_of_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """Return in which way arguments do not fit their schema, which `problem_of_specs` has passed; empty if they do."""
    try:
        text = to_json(arguments)
    except TypeError as error:
        return f"the arguments are no JSON: {one_line(str(error))}"
    if len(text) > MOST_BYTES:
        return too_long(len(text))
    return await _bounded(_mismatch, to_json(schema, orjson.OPT_SORT_KEYS), text)


async def _bounded(check: Callable[..., str], schema: bytes, *arguments: bytes) -> str:
    """Return the result of a check, done where it can hold up nothing else."""
    if _is_linear(schema) and len(schema) * max(_COMPILING, sum(map(len, arguments))) <= _INLINE_COST:
        return check(schema, *arguments)
    from agentrl_core.concurrency.processes import CallTimeoutError, WorkerDiedError, run_in_process

    try:
        result: str = await run_in_process(
            check, schema, *arguments, timeout_s=_LIMIT_S, memory_mb=_MEMORY_MB, max_workers=2, pool=_POOL
        )
    except CallTimeoutError:
        return f"the check of the schema took more than {_LIMIT_S:g} s and was stopped"
    except WorkerDiedError as error:
        return one_line(f"the check of the schema failed: {error}")
    return result


@functools.lru_cache(maxsize=_MOST_SCHEMAS)
def _is_linear(schema: bytes) -> bool:
    """Return whether a check visits each pair of a part of the schema and a part of the arguments at most once."""
    return not _has_costly(orjson.loads(schema))


def _has_costly(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_has_costly, schema))
    if not isinstance(schema, dict):
        return False
    options = schema.get("enum")
    allowed = [*(options if isinstance(options, list) else [options]), schema.get("const")]
    return (
        not _COSTLY.isdisjoint(schema)
        # Numbers are compared as exact fractions.
        or not all(value is None or isinstance(value, str | bool) for value in allowed)
        or any(
            any(map(_has_costly, value.values())) if key in _BY_NAME and isinstance(value, dict) else _has_costly(value)
            for key, value in schema.items()
        )
    )


@functools.lru_cache(maxsize=_MOST_SCHEMAS)
def _validator(schema: bytes) -> Validator:
    """Return the compiled form of a schema; raises `ValidationError`, or `ValueError` for one nested too deep.

    Regular expressions run in linear time, unless they look around or refer back: then a number of steps is the limit.
    """
    loaded = orjson.loads(schema)
    if not any(name in str(loaded.get("$schema")) for name in _DIALECTS):
        loaded.pop("$schema", None)
    # Offline: a reference to an address or a file, which a server chooses, is an error. Formats are hints.
    return validator_for(loaded, offline=True, validate_formats=False)


def _compiling_problem(schema: bytes) -> str:
    """Return why a schema cannot be compiled; empty if it can."""
    try:
        _validator(schema)
    except ValidationError as error:
        return _described(error)
    except ValueError as error:
        return one_line(str(error))
    return ""


def _mismatch(schema: bytes, arguments: bytes) -> str:
    """Return the first thing in which arguments do not fit a schema; empty if they do."""
    try:
        _validator(schema).validate(orjson.loads(arguments))
    except ValidationError as error:
        return _described(error)
    except ValueError as error:
        return one_line(str(error))
    return ""


def _described(error: ValidationError) -> str:
    """Return place and message of an error, or of its cause in the one alternative of `anyOf` that was meant."""
    while (branch := _meant(error)) is not None:
        error = branch[0]
    value, message = orjson.dumps(error.instance, default=str).decode(), error.message
    if error.kind.name == "enum":
        options: Sequence[Any] = error.kind.value
        message = f"{value} is not one of {', '.join(orjson.dumps(option).decode() for option in options)}"
    if len(value) > _LONGEST_VALUE and message.startswith(value):
        message = value[: _LONGEST_VALUE - 1] + "…" + message.removeprefix(value)
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
    return one_line(f"{place.removeprefix('.')}: {message}" if place else message)


def _meant(error: ValidationError) -> list[ValidationError] | None:
    """Return the errors of the only alternative whose type fits the value; None if there is no such alternative."""
    if error.kind.name not in {"anyOf", "oneOf"} or not isinstance(alternatives := error.kind.value, list):
        return None
    fitting = [
        errors
        for errors in alternatives
        if errors and not any(item.kind.name == "type" and item.instance_path == error.instance_path for item in errors)
    ]
    return fitting[0] if len(fitting) == 1 else None
