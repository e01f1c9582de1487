"""Describe a Python function as a tool, and convert a call's arguments to the types that it declares."""

from __future__ import annotations

import collections.abc
import datetime as dt
import enum
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import attrs

from agentrl_core.api.tools import ToolSpec

_PLAIN: Mapping[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}
_TEXTS: Mapping[Any, Mapping[str, str]] = {Path: {}, dt.date: {"format": "date"}, dt.datetime: {"format": "date-time"}}
"""Types that JSON writes as texts."""
_LISTS = (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_GOOGLE = re.compile(r"^\s*(?:Args|Arguments|Parameters)\s*:\s*$")
_ITEM = re.compile(r"^(\s*)\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_SPHINX = re.compile(r"^\s*:param\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)$")
_SECTION = re.compile(r"^\s*(?:Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?|Notes?)\s*:?\s*$|^\s*:\w+")


def describe_function(function: Callable[..., Any]) -> ToolSpec:
    """Return name, description and schema of a function; `ValueError` if JSON cannot give it its arguments by name.

    The description is the docstring up to its sections; those of the parameters come from `Args:`, `:param x:` or
    `Annotated[T, "text"]`. A parameter without a type takes any value.
    """
    name = getattr(function, "__name__", type(function).__name__)
    where = _where(function, name)
    description, of_parameters = _read_docstring(inspect.getdoc(function) or "")
    try:
        hints = _hints(function)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise ValueError(
            f"{where}: the types of its parameters cannot be read ({error}); correct them, and import them where only "
            "type checkers have them"
        ) from error
    properties: dict[str, Any] = {}
    required = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise ValueError(
                f"{where}: its parameter '{_in_signature(parameter)}' cannot be given by name, as tools' arguments are"
            )
        try:
            schema = _schema(hints.get(parameter.name, Any))
        except _UnknownTypeError as error:
            raise ValueError(
                f"{where}: its parameter '{parameter.name}' has a type that JSON cannot give: {error}; expected str, "
                "int, float, bool, None, lists and dicts of these, Literal, an enumeration, Path, date, "
                "datetime, a TypedDict, an attrs class or a dataclass"
            ) from error
        except RecursionError as error:
            raise ValueError(f"{where}: its parameter '{parameter.name}' has a type that contains itself") from error
        if text := of_parameters.get(parameter.name):
            schema = {**schema, "description": text}
        properties[parameter.name] = schema
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return ToolSpec(name=name, description=description, parameters=parameters)


def convert_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON values as the types that the function declares; a value that fits none stays as it is."""
    hints = _hints(function)
    return {name: _converted(value, hints[name]) if name in hints else value for name, value in arguments.items()}


class _UnknownTypeError(Exception):
    """A type that no JSON value can be turned into."""


def _where(function: Callable[..., Any], name: str) -> str:
    code = getattr(inspect.unwrap(_plain_function(function)), "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}: {name}" if code else name


def _in_signature(parameter: inspect.Parameter) -> str:
    return f"*{parameter.name}" if parameter.kind is parameter.VAR_POSITIONAL else parameter.name


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    inner = inspect.unwrap(_plain_function(function))
    # What it returns does not matter here, and may be a type that only type checkers import.
    annotations = {name: kind for name, kind in getattr(inner, "__annotations__", {}).items() if name != "return"}
    holder = types.SimpleNamespace(__annotations__=annotations)
    return typing.get_type_hints(holder, globalns=getattr(inner, "__globals__", {}), include_extras=True)


def _plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    if isinstance(function, functools.partial):
        return _plain_function(function.func)
    if inspect.isroutine(function):
        return function
    return type(function).__call__  # an object that can be called


def _schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of a type; raise `_UnknownTypeError` for one that has none."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is typing.Annotated:
        texts = [item for item in kind.__metadata__ if isinstance(item, str)]
        return _schema(inner[0]) | ({"description": texts[0]} if texts else {})
    if isinstance(kind, typing.NewType) or origin in (typing.Required, typing.NotRequired):
        return _schema(inner[0] if inner else kind.__supertype__)
    if inspect.isclass(kind) and origin is None and kind not in (*_PLAIN, *_LISTS, *_MAPPINGS):
        return {} if kind in (object, Any) else _schema_of_class(kind)
    return _schema_of_form(kind, origin, inner)


def _schema_of_form(kind: Any, origin: Any, inner: tuple[Any, ...]) -> dict[str, Any]:
    if kind in _PLAIN or origin is Literal:
        return {"enum": list(inner)} if inner else {"type": _PLAIN[kind]}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(item) for item in inner]}
    if (origin or kind) in _LISTS:
        return {"type": "array", "items": _schema(inner[0])} if inner else {"type": "array"}
    if (origin or kind) in _MAPPINGS:
        of_values = {"additionalProperties": _schema(inner[1])} if len(inner) > 1 else {}
        return {"type": "object", **of_values}
    raise _UnknownTypeError(repr(kind))


def _schema_of_class(kind: type) -> dict[str, Any]:
    if kind in _TEXTS:
        return {"type": "string", **_TEXTS[kind]}
    if issubclass(kind, enum.Enum):
        return {"enum": [item.value for item in kind]}
    if typing.is_typeddict(kind):
        needed: frozenset[str] = vars(kind)["__required_keys__"]
        return _object({key: (hint, key in needed) for key, hint in _fields(kind).items()})
    if attrs.has(kind) or hasattr(kind, "__dataclass_fields__"):
        parameters = inspect.signature(kind).parameters
        fields = _fields(kind)
        return _object({key: (fields.get(key, Any), item.default is item.empty) for key, item in parameters.items()})
    raise _UnknownTypeError(kind.__qualname__)


def _fields(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _object(fields: Mapping[str, tuple[Any, bool]]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: _schema(hint) for name, (hint, _) in fields.items()},
        "required": [name for name, (_, needed) in fields.items() if needed],
    }


@functools.cache
def _converter() -> Any:
    from cattrs.preconf.json import make_converter

    return make_converter()


def _converted(value: Any, kind: Any) -> Any:
    """Return a value as a `kind` that JSON lacks, such as a set, an enumeration or a class."""
    from cattrs.errors import BaseValidationError, StructureHandlerNotFoundError

    if kind in _PLAIN or kind is Any:
        return value  # the schema was checked, and cattrs would turn any value into a text
    try:
        return _converter().structure(value, kind)
    except (BaseValidationError, StructureHandlerNotFoundError, ValueError, TypeError):
        return value


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the description before the first section, and the texts of the parameters."""
    lines = text.splitlines()
    end = next((index for index, line in enumerate(lines) if _SECTION.match(line)), len(lines))
    return "\n".join(lines[:end]).strip(), _google(lines) | _sphinx(lines)


def _google(lines: list[str]) -> dict[str, str]:
    start = next((index + 1 for index, line in enumerate(lines) if _GOOGLE.match(line)), len(lines))
    found: dict[str, list[str]] = {}
    depth, name = None, ""
    for line in lines[start:]:
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        if indent == 0 or (depth is not None and indent < depth):
            break
        item = _ITEM.match(line)
        if item and (depth is None or indent == depth):
            depth, name = indent, item[2]
            found[name] = [item[3]]
        elif name:
            found[name].append(line.strip())
    return {name: " ".join(filter(None, texts)) for name, texts in found.items()}


def _sphinx(lines: list[str]) -> dict[str, str]:
    return {item[1]: item[2].strip() for line in lines if (item := _SPHINX.match(line))}
