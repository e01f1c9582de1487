"""Read the declared fields of a JSON body; errors name the field and the type that was expected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentrl_core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.gateway.dialects.shape import Schema


class Fields:
    """Fields of one JSON object.

    `shape` declares the fields that are read, with their bounds; the OpenAPI document shows the same declaration.
    `path` is the object's place in the body, for errors. Every method raises `RequestError` (400) for a wrong type.
    """

    def __init__(self, body: Any, shape: Schema, path: str = "") -> None:
        if not isinstance(body, dict):
            where = path.rstrip(".") or "the body"
            raise RequestError(
                400, "invalid_type", f"{where} must be a JSON object, not {_kind(body)}", param=path or None
            )
        self._shapes: Mapping[str, Schema] = shape["properties"]
        # Reading a field that is not declared is a KeyError even if the body has it: the document would lack it.
        self._declared = {name: body.get(name) for name in self._shapes}
        self._rest = {name: value for name, value in body.items() if value is not None and name not in self._shapes}
        self._path = path

    def take(self, name: str) -> Any:
        """Return the value of a field of any type; None where it is missing."""
        return self._declared[name]

    def inside(self, name: str) -> Fields:
        """Return the fields of an object field; none where it is missing."""
        return Fields(self.take(name) or {}, self._shapes[name], f"{self._path}{name}.")

    def text(self, name: str) -> str | None:
        """Return the value of a string field; None where it is missing."""
        value = self.take(name)
        return None if value is None else self._checked(name, value, isinstance(value, str), "a string")

    def flag(self, name: str) -> bool:
        """Return the value of a boolean field; its default where it is missing."""
        value = self.take(name)
        value = self._shapes[name]["default"] if value is None else value
        return bool(self._checked(name, value, isinstance(value, bool), "a boolean"))

    def number(self, name: str) -> float | None:
        """Return the value of a number field within its bounds; None where it is missing."""
        value, shape = self.take(name), self._shapes[name]
        if value is None:
            return None
        above, least, most = shape.get("exclusiveMinimum"), shape.get("minimum"), shape["maximum"]
        good = isinstance(value, int | float) and not isinstance(value, bool)
        good = good and (least <= value if above is None else above < value) and value <= most
        bounds = f"from {least:g} to {most:g}" if above is None else f"above {above:g} and at most {most:g}"
        return float(self._checked(name, value, good, f"a number {bounds}"))

    def integer(self, name: str) -> int | None:
        """Return the value of an integer field within its bounds; None where it is missing."""
        value, least, most = self.take(name), self._shapes[name]["minimum"], self._shapes[name]["maximum"]
        if value is None:
            return None
        # JSON's true and false are ints in Python.
        good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        return int(self._checked(name, value, good, f"an integer from {least} to {most}"))

    def rest(self) -> Mapping[str, Any]:
        """Return the fields that are neither declared nor null."""
        return self._rest

    def _checked(self, name: str, value: Any, good: bool, expected: str) -> Any:  # noqa: FBT001 - the outcome of a check
        # `param` is the field's full path, as OpenAI's errors name it.
        if not good:
            raise wrong_type(f"{self._path}{name}", f"must be {expected}, not {_shown(value)}")
        return value


def text_of(raw: Mapping[str, Any], key: str, where: str) -> str:
    """Return the text under a key of the object at `where`, empty if it is missing; `RequestError` (400) if no text."""
    value = raw.get(key)
    if not isinstance(value, str | None):
        raise wrong_type(f"{where}.{key}", "must be a string")
    return value or ""


def wrong_type(param: str, message: str) -> RequestError:
    """Build the error (400) for a value of another type or form than its field has."""
    return RequestError(400, "invalid_type", f"{param} {message}", param=param)


def missing(param: str) -> RequestError:
    """Build the error (400) for a required field that is not there."""
    return RequestError(400, "missing_required_parameter", f"{param} is missing", param=param)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, int | float) else _kind(value)
