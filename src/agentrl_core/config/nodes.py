"""Config values before they are checked, each with its origin: file and line, or an override."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from agentrl_core.errors import ConfigError


@attrs.frozen
class Place:
    """Place at which a value was written."""

    text: str
    """Place for messages: `config.yaml:9` or `command line: trainer.lr=1`."""
    order: int = 0
    """Sort key of messages: the file's line number; overrides have larger numbers, in the order given."""
    is_override: bool = False
    """True for a value from the command line."""
    stays: bool = False
    """True for an option of the workflow that applies to whichever workflow an override names."""


@attrs.frozen
class Node:
    """Value with its place."""

    value: Any
    """Scalar, `dict[str, Node]` or `list[Node]`. Overrides change the dicts and lists in place."""
    place: Place

    def plain(self) -> Any:
        """Return the value without places."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


@attrs.frozen
class Assignment:
    """One option as the user set it. A section gives one assignment per option; a list is one value."""

    path: tuple[str, ...]
    node: Node
    spelled: str
    """Dotted key as the user wrote it, before aliases are translated."""


@attrs.frozen
class Problem:
    """Fault of the config; all faults are reported together."""

    place: Place
    text: str

    def __str__(self) -> str:
        return f"{self.place.text}: {self.text}"


def refusal(problems: Sequence[Problem]) -> ConfigError:
    """Return one error with a line per problem: first those of the file by line, then those of the overrides."""
    ordered = sorted(problems, key=lambda problem: problem.place.order)
    return ConfigError("\n".join(dict.fromkeys(map(str, ordered))))


def describe(value: Any) -> str:
    """Describe a plain value for messages of the form `found …`; hide the password of an address."""
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
    """Return the text with user and password of database addresses replaced by `***`."""
    # Up to the last @, because a password that nobody escaped may have any sign.
    return re.sub(r"://\S*@", "://***@", text)


def without_url_passwords(text: str) -> str:
    """Return a text whose URLs keep their user, and not the password."""
    return re.sub(r"(://[^/?#:@\s]*):[^/?#\s]*@", r"\1@", text)


_SECRET_NAME = re.compile(r"password|token|secret|authmechanismproperties", re.IGNORECASE)
"""Matches names of options of an address whose values are secrets."""


def with_user_alone(text: str) -> str:
    """Return a database's address with its user, and without its password and secret options."""
    if "://" not in text:
        return text
    text = re.sub(r"(://[^/:@\s]*):\S*@", r"\1@", text)
    address, _, options = text.partition("?")
    given = re.split("[&;]", options)
    kept = [option for option in given if not _SECRET_NAME.search(option.partition("=")[0])]
    if kept == given:
        return text
    return f"{address}?{'&'.join(kept)}" if kept else address


def from_python(value: Any, place: Place) -> Node:
    """Turn plain Python data into nodes; tuples become lists, and paths become text."""
    if isinstance(value, Mapping):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            raise ConfigError(f"{place.text}: expected text as keys, found {wrong[0]!r}")
        return Node({key: from_python(item, place) for key, item in value.items()}, place)
    if isinstance(value, list | tuple):
        return Node([from_python(item, place) for item in value], place)
    return Node(os.fspath(value) if isinstance(value, os.PathLike) else value, place)


def assignments(node: Node, path: tuple[str, ...] = ()) -> Iterator[Assignment]:
    """Yield the options of a section as single assignments, in the order in which they were written.

    The section itself comes first, as an empty one, so that its place is known to messages.
    """
    spelled = ".".join(path)
    if not isinstance(node.value, dict):
        yield Assignment(path, node, spelled)
        return
    if path:
        yield Assignment(path, Node({}, node.place), spelled)
    for key, item in node.value.items():
        yield from assignments(item, (*path, key))
