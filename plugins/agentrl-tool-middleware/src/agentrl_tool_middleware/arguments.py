"""Middleware `arguments`: brings what a model wrote as arguments into the form that a tool expects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from attrs import field

if TYPE_CHECKING:
    from agentrl_core.api.tools import CallNext, ToolRequest, ToolResult


_TYPES: Mapping[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
    "string": (str,),
}


@attrs.frozen(kw_only=True)
class ToolArguments:
    """Changes to the arguments of one tool, in the order of these fields."""

    rename: Mapping[str, str] = field(factory=dict)
    """Name that a model may use -> name that the tool knows; an argument that is there already stays."""
    drop: Sequence[str] = ()
    """Arguments that are left out."""
    defaults: Mapping[str, Any] = field(factory=dict)
    """Values of arguments that are missing or null."""
    lists: Sequence[str] = ()
    """Arguments whose single value becomes a list of one."""


@attrs.frozen(kw_only=True)
class Arguments:
    """Renames, drops, completes and converts arguments, before they are checked against the tool's schema."""

    _tools: Mapping[str, ToolArguments] = field(factory=dict)
    """Name of a tool, with its server's prefix -> changes to its arguments; `*` for those of every tool, made first."""
    convert: bool = False
    """Converts values by the tool's schema where that is unmistakable: the text of a number, of true or false, of a
    list or an object; a single value for a list; a number for a text."""

    async def call(self, request: ToolRequest, call_next: CallNext) -> ToolResult:
        """Call the tool with the changed arguments."""
        arguments = dict(request.arguments)
        for name in ("*", request.name):
            if (changes := self._tools.get(name)) is not None:
                arguments = _changed(arguments, changes)
        if self.convert and request.tool is not None:
            properties = request.tool.parameters.get("properties")
            known = properties if isinstance(properties, Mapping) else {}
            arguments = {key: _converted(value, known.get(key)) for key, value in arguments.items()}
        return await call_next(attrs.evolve(request, arguments=arguments))


def _changed(arguments: dict[str, Any], changes: ToolArguments) -> dict[str, Any]:
    for old, new in changes.rename.items():
        if old in arguments:
            value = arguments.pop(old)
            arguments.setdefault(new, value)
    for name in changes.drop:
        arguments.pop(name, None)
    for name, value in changes.defaults.items():
        if arguments.get(name) is None:
            arguments[name] = value
    for name in changes.lists:
        if name in arguments and not isinstance(arguments[name], list):
            arguments[name] = [arguments[name]]
    return arguments


def _converted(value: Any, schema: Any) -> Any:
    """Return a value as its schema wants it; the value itself if it fits, or if no conversion is unmistakable."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if not isinstance(kind, str) or _fits(value, kind):
        return value
    if kind == "string":
        return json.dumps(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    if isinstance(value, str):
        try:
            read = json.loads(value.lower() if kind == "boolean" else value)
        except (ValueError, RecursionError):
            read = value
        if _fits(read, kind):
            return read
    if kind == "array" and value is not None:
        return [_converted(value, schema.get("items"))]
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _fits(value: Any, kind: str) -> bool:
    types = _TYPES.get(kind)
    return types is None or (isinstance(value, types) and isinstance(value, bool) == (kind == "boolean"))
