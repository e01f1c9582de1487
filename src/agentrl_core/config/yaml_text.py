"""Reader of YAML files and `a.b=c` overrides that keeps line numbers, and writer of YAML.

PyYAML implements YAML 1.1. This reader follows YAML 1.2, which people expect: `1e-6` is a number, `on` and `no` are
text, and `010` is ten. A key may occur only once in its section.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import yaml

from agentrl_core.config.nodes import Assignment, Node, Place, Problem, without_password
from agentrl_core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_AFTER_ALL_LINES = 10**9
"""Sort key that puts problems of overrides after those of the file."""

_MOST_BYTES = 1_000_000
"""Largest config file in bytes; PyYAML takes about 10 CPU seconds for it."""
_DEEPEST = 100
"""Deepest nesting of sections and lists; the deepest option of a run has 5 levels."""
_MOST_REPEATED = 1000
"""Most values that YAML aliases may repeat; nine lines of nested aliases could stand for a billion values."""
_LONGEST_NUMBER = 1000
"""Longest whole number in characters; the time to convert one grows with the square of its length."""


def read_file(path: Path, problems: list[Problem]) -> Node:
    """Read a YAML file; raise `ConfigError` if it cannot be read or is not YAML, add other faults to `problems`."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)  # one byte more tells a file of the limit from a larger one
    except IsADirectoryError as error:
        raise ConfigError(f"{path}: expected a config file, found a folder") from error
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such config file") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the config file: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"{path}: expected a config file of at most {_MOST_BYTES:,} bytes, found a larger one")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: expected UTF-8 text, found the byte 0x{content[error.start]:02x}") from error
    return _read(text, lambda line: Place(f"{path}:{line}", line), problems)


def read_override(text: str, index: int, problems: list[Problem]) -> Assignment:
    """Read an override `a.b=c` or `--a.b=c`; its value is YAML."""
    place = Place(f"command line: {without_password(text)}", _AFTER_ALL_LINES + index, is_override=True)
    key, equals, value = text.removeprefix("--").partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path):
        raise ConfigError(f"{place.text}: expected KEY=VALUE, for example trainer.steps=20")
    node = _read(value, lambda _line: place, problems)
    return Assignment(path, node, key.strip())


def write_yaml(data: Mapping[str, Any]) -> str:
    """Return plain data as YAML that `read_file`, and any reader of YAML 1.1, reads back to the same values."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Loader(yaml.SafeLoader):
    """Loader that only composes nodes; scalars get their types by `_SCALARS` instead of YAML 1.1's rules."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (PyYAML's own attribute)
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose one node; raise on nesting that would exhaust the recursion limit, and on anchors defined twice."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        anchor = getattr(event, "anchor", None)
        if self.depth >= _DEEPEST:
            raise yaml.MarkedYAMLError(
                problem=f"nested more than {_DEEPEST} levels deep", problem_mark=event.start_mark
            )
        if anchor in self.anchors and not isinstance(event, yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem=f"the anchor &{anchor} is defined twice", problem_mark=event.start_mark)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


class _Dumper(yaml.SafeDumper):
    """Dumper that quotes every text that YAML 1.1 or 1.2 would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  (PyYAML's signature)
        return True


_SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}
"""Core schema of YAML 1.2.2 (10.3.2): for each type, the pattern of its plain scalars and their first characters."""

_TAG = "tag:yaml.org,2002:"

for _kind, (_pattern, _starts) in _SCALARS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"{_TAG}{_kind}", re.compile(f"^(?:{_pattern})$"), _starts)


def _read(text: str, place_of: Callable[[int], Place], problems: list[Problem]) -> Node:
    """Compose YAML text into nodes; raise `ConfigError` on broken YAML, and add every other fault to `problems`."""
    first = place_of(1)
    try:
        root = yaml.compose(text, Loader=_Loader)
        return Node(None, first) if root is None else _Converter(place_of, problems).convert(root, first)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, f" (column {mark.column + 1})") if mark else (1, "")
        raise ConfigError(f"{place_of(line).text}: not valid YAML: {error.problem or error.context}{column}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{first.text}: not valid YAML: {str(error).splitlines()[0]}") from error


@attrs.define
class _Converter:
    """Converter of composed YAML into nodes; the place of a value is the line of its key."""

    place_of: Callable[[int], Place]
    problems: list[Problem]
    _converted: set[int] = attrs.field(factory=set)
    """Ids of the composed nodes that were converted so far."""
    _repeated: int = 0
    """Number of nodes that were converted again because of an alias."""

    def convert(self, node: yaml.Node, place: Place, parents: tuple[yaml.Node, ...] = ()) -> Node:
        if any(node is parent for parent in parents):
            return self._problem(place, "a section refers to itself")
        self._repeated += id(node) in self._converted
        self._converted.add(id(node))
        if self._repeated > _MOST_REPEATED:
            raise ConfigError(
                f"{place.text}: YAML aliases repeat more than {_MOST_REPEATED:,} values; write some of them out"
            )
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, place)
        if node.tag not in {f"{_TAG}map", f"{_TAG}seq"}:
            return self._problem(place, f"the YAML tag {node.tag} is not supported")
        inside = (*parents, node)
        if isinstance(node, yaml.SequenceNode):
            return Node([self.convert(item, self._place(item), inside) for item in node.value], place)
        section: dict[str, Node] = {}
        for key, value in node.value:
            at = self._place(key)
            if not isinstance(key, yaml.ScalarNode):
                self._problem(at, "expected a name before the colon, found a list or a section")
            elif key.value in section:
                self._problem(at, f"{key.value} is given twice, first at {section[key.value].place.text}")
            else:
                section[key.value] = self.convert(value, at, inside)
        return Node(section, place)

    def _scalar(self, node: yaml.ScalarNode, place: Place) -> Node:
        kind, text = node.tag.removeprefix(_TAG), node.value
        if kind == "str":
            return Node(text, place)
        if kind not in _SCALARS:
            return self._problem(place, f"the YAML tag {node.tag} is not supported")
        if not re.fullmatch(_SCALARS[kind][0], text):  # an explicit tag: `!!int abc`
            return self._problem(place, f"{text!r} is not a value of the YAML type {kind}")
        if kind == "int" and len(text) > _LONGEST_NUMBER:
            return self._problem(place, f"the number {text[:20]}… is too long")
        return Node(_PARSERS[kind](text), place)

    def _place(self, node: yaml.Node) -> Place:
        return self.place_of(node.start_mark.line + 1)

    def _problem(self, place: Place, text: str) -> Node:
        self.problems.append(Problem(place, text))
        return Node(None, place)


def _integer(text: str) -> int:
    return int(text, {"0x": 16, "0o": 8}.get(text[:2], 10))


_PARSERS: dict[str, Callable[[str], Any]] = {
    "null": lambda _: None,
    "bool": lambda text: text.lower() == "true",
    "int": _integer,
    "float": lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
}
