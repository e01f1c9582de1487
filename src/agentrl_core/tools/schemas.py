"""Descriptions of tools: checks of what servers give, checks of arguments, and the shapes of the LLM APIs."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import orjson

from agentrl_core.api.tools import ToolSpec
from agentrl_core.config.nodes import without_password

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_LONGEST = 300
"""Characters of an error that a model or a record gets."""
_MOST_SCHEMAS = 4096
"""Compiled schemas that are kept."""


def one_line(text: str, longest: int = _LONGEST) -> str:
    """Return a text as one line of at most `longest` characters."""
    line = " ".join(text[: 4 * longest].split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def to_json(value: Any, option: int = 0) -> bytes:
    """Return a JSON value as text; `TypeError` if it is none."""
    return orjson.dumps(value, default=_as_dict, option=option)


def _as_dict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def plain(value: Any) -> Any:
    """Return a JSON value whose objects are dicts; a server may give other mappings, which stores do not take."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return list(map(plain, value)) if isinstance(value, list) else value


def described(error: BaseException) -> str:
    """Return type and message of an exception as one line, without passwords of addresses."""
    text = one_line(without_password(str(error)))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def problem_of_specs(specs: Iterable[Any]) -> str:
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
        if problem := _problem_of_schema(spec.parameters):
            return f"has an invalid schema of the arguments of '{spec.name}': {problem}"
    return ""


def _problem_of_schema(schema: Any) -> str:
    from jsonschema.exceptions import SchemaError

    if not isinstance(schema, Mapping):
        return f"expected an object, found {type(schema).__name__}"
    if schema.get("type", "object") != "object":
        return f"expected the type object, found {one_line(repr(schema['type']), 60)}"
    try:
        problem_of_arguments(schema, {})
    except TypeError as error:
        return f"it is no JSON: {error}"
    except SchemaError as error:
        return one_line(f"{error.message} (at {error.json_path})")
    except Exception as error:  # noqa: BLE001 - a reference that leads nowhere, or in a circle
        return one_line(f"{type(error).__name__}: {error}")
    return ""


def problem_of_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """Return in which way arguments do not fit their schema; empty if they do."""
    from jsonschema.exceptions import best_match

    error = best_match(_validator(to_json(schema, orjson.OPT_SORT_KEYS)).iter_errors(arguments))
    if error is None:
        return ""
    place = error.json_path.removeprefix("$").removeprefix(".")
    return one_line(f"{place}: {error.message}" if place else error.message)


@functools.lru_cache(maxsize=_MOST_SCHEMAS)
def _validator(schema: bytes) -> Validator:
    """Return the compiled form of a schema; raises `SchemaError`."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry

    loaded = orjson.loads(schema)
    kind = validator_for(loaded, default=Draft202012Validator)
    kind.check_schema(loaded)
    # An empty registry: the default one fetches schemas from the addresses that a server names.
    return kind(loaded, registry=Registry())


def parse_arguments(arguments: Mapping[str, Any] | str) -> tuple[dict[str, Any] | None, str]:
    """Return the arguments of a call as a JSON object, or None with what is wrong with them.

    An empty text is an object without members, as some models write calls without arguments.
    """
    try:
        text = arguments if isinstance(arguments, str) else to_json(arguments)
        parsed = orjson.loads(text) if text.strip() else {}
    except orjson.JSONDecodeError as error:
        return None, one_line(f"the arguments are no JSON: {error}")
    except TypeError as error:
        return None, one_line(f"the arguments are no JSON: {error}")
    if not isinstance(parsed, dict):
        return None, f"the arguments must be a JSON object, not {_json_type(parsed)}"
    return parsed, ""


def _json_type(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return orjson.dumps(value).decode()
    return "an array" if isinstance(value, list) else "a string" if isinstance(value, str) else "a number"


def prefixed(spec: ToolSpec, prefix: str) -> ToolSpec:
    """Return a tool as the model sees it; its schema is a copy."""
    parameters = orjson.loads(to_json(spec.parameters))
    return attrs.evolve(spec, name=prefix + spec.name, parameters={"type": "object", **parameters})


def openai_tools(specs: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return tools for OpenAI's chat completions."""
    return [{"type": "function", "function": _function(spec)} for spec in specs]


def openai_responses_tools(specs: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return tools for OpenAI's Responses; not strict, because that refuses schemas with optional arguments."""
    return [{"type": "function", **_function(spec), "strict": False} for spec in specs]


def anthropic_tools(specs: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return tools for Anthropic's messages."""
    return [
        {"name": spec.name, "description": spec.description, "input_schema": dict(spec.parameters)} for spec in specs
    ]


def _function(spec: ToolSpec) -> dict[str, Any]:
    return {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
