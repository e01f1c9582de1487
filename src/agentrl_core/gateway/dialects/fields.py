"""Read typed fields of a JSON body; errors name the field and the type that was expected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentrl_core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_INTEGER = 2**31 - 1


class Fields:
    """Fields of one JSON object; reading a field takes it out, so that `rest` returns the unknown ones.

    `path` is the object's place in the body, for errors. Every method raises `RequestError` (400) for a wrong type.
    """

    def __init__(self, body: Any, path: str = "") -> None:
        if not isinstance(body, dict):
            where = path.rstrip(".") or "the body"
            raise RequestError(
                400, "invalid_type", f"{where} must be a JSON object, not {_kind(body)}", param=path or None
            )
        self._left = dict(body)
        self._path = path

    def take(self, name: str) -> Any:
        """Return the value of a field of any type; None where it is missing."""
        return self._left.pop(name, None)

    def text(self, name: str) -> str | None:
        """Return the value of a string field; None where it is missing."""
        value = self.take(name)
        return None if value is None else self._checked(name, value, isinstance(value, str), "a string")

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return the value of a boolean field; `default` where it is missing."""
        value = self.take(name)
        return default if value is None else bool(self._checked(name, value, isinstance(value, bool), "a boolean"))

    def number(self, name: str, *, least: float = 0.0, above: float | None = None, most: float) -> float | None:
        """Return the value of a number field; None where it is missing.

        It must be between `least` and `most`, inclusive; with `above`, strictly above that.
        """
        value = self.take(name)
        if value is None:
            return None
        good = isinstance(value, int | float) and not isinstance(value, bool)
        good = good and (least <= value if above is None else above < value) and value <= most
        bounds = f"from {least:g} to {most:g}" if above is None else f"above {above:g} and at most {most:g}"
        return float(self._checked(name, value, good, f"a number {bounds}"))

    def integer(self, name: str, *, least: int, most: int = _MOST_INTEGER) -> int | None:
        """Return the value of an integer field between `least` and `most`, inclusive; None where it is missing."""
        value = self.take(name)
        if value is None:
            return None
        # JSON's true and false are ints in Python.
        good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
        return int(self._checked(name, value, good, f"an integer from {least} to {most}"))

    def rest(self) -> Mapping[str, Any]:
        """Return the fields that were not taken and are not null."""
        return {name: value for name, value in self._left.items() if value is not None}

    def _checked(self, name: str, value: Any, good: bool, expected: str) -> Any:  # noqa: FBT001 - the outcome of a check
        # `param` is the field's full path, as OpenAI's errors name it.
        if not good:
            param = f"{self._path}{name}"
            raise RequestError(400, "invalid_type", f"{param} must be {expected}, not {_shown(value)}", param=param)
        return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, int | float) else _kind(value)
