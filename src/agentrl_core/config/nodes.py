"""Config values that remember where they were written, so that every message can say so."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from agentrl_core.errors import ConfigError


@attrs.frozen
class Place:
    """Where a value was written."""

    text: str
    """`config.yaml:9` or `command line: trainer.lr=1`."""
    order: int = 0
    """Sorts messages: line numbers first, then overrides as they were given."""
    is_override: bool = False
    """Written on the command line, not in the file."""


@attrs.frozen
class Node:
    """One value and its place."""

    value: Any
    """A scalar, a `dict[str, Node]` or a `list[Node]`; both are changed in place while overrides are applied."""
    place: Place

    def plain(self) -> Any:
        """Drop the places."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


@attrs.frozen
class Assignment:
    """One option as the user set it; sections are taken apart, lists are not."""

    path: tuple[str, ...]
    node: Node
    spelled: str
    """The dotted key as the user wrote it, before aliases."""


@attrs.frozen
class Problem:
    """Something wrong with the config; all of them are reported together."""

    place: Place
    text: str

    def __str__(self) -> str:
        return f"{self.place.text}: {self.text}"


def refusal(problems: Sequence[Problem]) -> ConfigError:
    """Return one error with a line for each problem: those of the file by line, then those of the overrides."""
    ordered = sorted(problems, key=lambda problem: problem.place.order)
    return ConfigError("\n".join(dict.fromkeys(map(str, ordered))))


def describe(value: Any) -> str:
    """Say what a plain value is, for messages of the form `found …`; the password of an address is hidden."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'the text "{without_password(value)}"'
    if isinstance(value, Mapping):
        return "a section"
    if isinstance(value, list | tuple):
        return "a list"
    return repr(value) if isinstance(value, int | float) else f"{type(value).__name__} {value!r}"


def without_password(text: str) -> str:
    """Hide user and password of a database address."""
    return re.sub(r"://[^/@\s]*@", "://***@", text)


def from_python(value: Any, place: Place) -> Node:
    """Turn plain Python data into nodes; tuples count as lists, paths as their text."""
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            raise ConfigError(f"{place.text}: expected text as keys, found {wrong[0]!r}")
        return Node({key: from_python(item, place) for key, item in value.items()}, place)
    if isinstance(value, list | tuple):
        return Node([from_python(item, place) for item in value], place)
    return Node(os.fspath(value) if isinstance(value, os.PathLike) else value, place)


def assignments(node: Node, path: tuple[str, ...] = ()) -> Iterator[Assignment]:
    """Take a section apart into its options, in the order in which they were written.

    A section itself comes first, as an empty one, so that its place is known.
    """
    spelled = ".".join(path)
    if not isinstance(node.value, dict):
        yield Assignment(path, node, spelled)
        return
    if path:
        yield Assignment(path, Node({}, node.place), spelled)
    for key, item in node.value.items():
        yield from assignments(item, (*path, key))
