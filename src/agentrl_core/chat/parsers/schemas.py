"""What a tool's JSON schema says of its arguments, for formats that write values as bare text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentrl_core.chat.parsers.json_text import strict_value

if TYPE_CHECKING:
    from agentrl_core.api.tool_parsers import Tools

_DEEPEST = 20
"""References that are followed, one to the next, before a schema counts as circular."""
_PYTHON = {"True": True, "False": False, "None": None}
"""Templates that print a value as Python does make models write it so."""


def name_of(tool: Mapping[str, Any]) -> str:
    """Return a tool's name."""
    return str(_function(tool).get("name") or "")


def parameters_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON schema of a tool's arguments."""
    schema = _function(tool).get("parameters")
    return {**schema, "type": "object"} if isinstance(schema, Mapping) else {"type": "object"}


def parameters_by_name(tools: Tools, name: str) -> Mapping[str, Any]:
    """Return the schema of the arguments of the tool `name`; an empty one where it is not there."""
    return next((parameters_of(tool) for tool in tools if name_of(tool) == name), {})


def properties(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schemas of the single arguments."""
    found = parameters.get("properties")
    return found if isinstance(found, Mapping) else {}


def typed_value(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """Read an argument that was written as bare text: JSON where the schema wants no text, else the text itself.

    `root` is where the schema's references start. Where the schema says nothing, text stays text.
    """
    types = types_of(schema, root)
    if types <= {"string"}:
        return text
    bare = text.strip()
    try:
        value = _PYTHON[bare] if bare in _PYTHON else strict_value(bare)
    except ValueError:
        return text
    # What may be text as well is something else only if the schema says so.
    return text if "string" in types and _type(value) not in types else value


def types_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> set[str]:
    """Return the JSON types that a schema allows; none where it does not tell."""
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
    """Return the texts that a schema allows; None where it allows anything else."""
    for _ in range(_DEEPEST):
        if not isinstance(schema, Mapping):
            return None
        if not isinstance(schema.get("$ref"), str):
            values = [*_items(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
            return values if values and all(isinstance(value, str) for value in values) else None
        schema = _resolve(schema["$ref"], root)
    return None


def to_json(arguments: Mapping[str, Any]) -> str:
    """Return the JSON text of arguments that were not written as JSON."""
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
