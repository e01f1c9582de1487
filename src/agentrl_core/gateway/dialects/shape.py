"""Declare fields of requests and replies as JSON schemas: `Fields` reads by them, the OpenAPI document shows them."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]

MOST_INTEGER = 2**31 - 1


def _field(kind: str, about: str = "", **bounds: Any) -> Schema:
    """Declare a field by its type, a line about it, and further keywords of JSON schemas such as `minimum`."""
    return _described(about, type=kind, **bounds)


# Each declares a field of one type; the arguments are those of `_field`.
text = partial(_field, "string")
flag = partial(_field, "boolean", default=False)
integer = partial(_field, "integer", minimum=0, maximum=MOST_INTEGER)
number = partial(_field, "number")
anything = partial(_field, "object")


def listed(items: Schema, about: str = "", **bounds: int) -> Schema:
    """Declare a list."""
    return _field("array", about, items=items, **bounds)


def one_of(*values: str, about: str = "") -> Schema:
    """Declare a choice among words."""
    return _described(about, enum=list(values))


def either(*schemas: Schema, about: str = "") -> Schema:
    """Declare a field of several possible types."""
    return _described(about, anyOf=list(schemas))


def refused(about: str) -> Schema:
    """Declare a field of the API that the gateway refuses unless it is null."""
    return _described(about, const=None)


def shaped(required: dict[str, Schema], /, **optional: Schema) -> Schema:
    """Declare an object, which may have further fields."""
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


def accepted(required: dict[str, Schema], /, **optional: Schema) -> Schema:
    """Declare an object of a request, whose optional fields may be null."""
    return shaped(required, **{name: _or_null(schema) for name, schema in optional.items()})


def _described(about: str, **keywords: Any) -> Schema:
    return {**keywords, "description": about} if about else keywords


def _or_null(schema: Schema) -> Schema:
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    return {**schema, "type": [schema["type"], "null"]} if "type" in schema else schema
