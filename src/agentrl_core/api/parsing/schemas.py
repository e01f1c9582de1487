"""Read types and properties from a tool's JSON schema, for formats that write argument values as bare text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentrl_core.api.parsing.json_text import strict_value

if TYPE_CHECKING:
    from agentrl_core.api.tool_parsers import Tools

_DEEPEST = 20
"""References in a row that are followed before a schema counts as circular."""
_PYTHON = {"True": True, "False": False, "None": None}
"""Python's constants, which models write if their template prints values as Python does."""


def name_of(tool: Mapping[str, Any]) -> str:
    """Return a tool's name."""
    return str(_function(tool).get("name") or "")


def parameters_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON schema of a tool's arguments."""
    schema = _function(tool).get("parameters")
    return {**schema, "type": "object"} if isinstance(schema, Mapping) else {"type": "object"}


def parameters_by_name(tools: Tools, name: str) -> Mapping[str, Any]:
    """Return the schema of the arguments of the tool `name`; an empty one if there is no such tool."""
    return next((parameters_of(tool) for tool in tools if name_of(tool) == name), {})


def properties(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schemas of the arguments by name."""
    found = parameters.get("properties")
    return found if isinstance(found, Mapping) else {}


def typed_value(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """Convert an argument that was written as bare text: parse JSON unless the schema wants text.

    `root` is the schema that references start from. Text stays text if the schema names no type.
    """
    types = types_of(schema, root)
    if types <= {"string"}:
        return text
    bare = text.strip()
    try:
        value = _PYTHON[bare] if bare in _PYTHON else strict_value(bare)
    except ValueError:
        return text
    # If the schema also allows text, a parsed value counts only if its own type is named too: else "7" stays text.
    return text if "string" in types and _type(value) not in types else value


def types_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> set[str]:
    """Return the JSON types that a schema allows; an empty set if it names none."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return set()
    if isinstance(reference := schema.get("$ref"), str):
        return types_of(_resolve(reference, root), root, depth + 1)
    if (named := schema.get("type")) is not None:
        names = {name for name in (named if isinstance(named, list) else [named]) if isinstance(name, str)}
        return names | {"integer"} if "number" in names else names
    values = [*_items(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    options = (option for key in ("anyOf", "oneOf", "allOf") for option in _items(schema.get(key)))
    return {_type(value) for value in values}.union(*(types_of(option, root, depth + 1) for option in options))


def words_of(schema: Any, root: Mapping[str, Any]) -> list[str] | None:
    """Return the strings that a schema allows; None if it allows anything else."""
    for _ in range(_DEEPEST):
        if not isinstance(schema, Mapping):
            return None
        if not isinstance(schema.get("$ref"), str):
            values = [*_items(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
            return values if values and all(isinstance(value, str) for value in values) else None
        schema = _resolve(schema["$ref"], root)
    return None


def to_json(arguments: Mapping[str, Any]) -> str:
    """Return the JSON text of arguments that the model wrote in another form."""
    return json.dumps(arguments, ensure_ascii=False, allow_nan=False)


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = tool.get("function")
    return inner if isinstance(inner, Mapping) else tool


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _type(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")
