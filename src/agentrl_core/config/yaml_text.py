"""YAML and `a.b=c` overrides read into nodes, and plain data written as YAML.

YAML is read by the rules of YAML 1.2, which people expect: `1e-6` is a number, `on` and `no` are words, `010` is
ten, and a key may stand only once in its section.
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
"""Overrides are reported after the problems of the file."""

_MOST_BYTES = 1_000_000
"""Of a config file: PyYAML takes about 10 CPU seconds for so much."""
_DEEPEST = 100
"""Levels of sections and lists within each other; the deepest option of a run has 5."""
_MOST_REPEATED = 1000
"""Values that aliases repeat; nine lines of them could stand for a billion."""
_LONGEST_NUMBER = 1000
"""Characters of a whole number; the time to read one grows with their square."""


def read_file(path: Path, problems: list[Problem]) -> Node:
    """Read a YAML file; a file that cannot be read, or is not YAML, is a ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
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
    """Read `a.b=c`, a leading `--` allowed; the value is YAML."""
    place = Place(f"command line: {without_password(text)}", _AFTER_ALL_LINES + index, is_override=True)
    key, equals, value = text.removeprefix("--").partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path):
        raise ConfigError(f"{place.text}: expected KEY=VALUE, for example trainer.steps=20")
    node = _read(value, lambda _line: place, problems)
    return Assignment(path, node, key.strip())


def write_yaml(data: Mapping[str, Any]) -> str:
    """Write plain data as YAML that `read_file`, and any reader of YAML 1.1, reads back to the same values."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Loader(yaml.SafeLoader):
    """Composes nodes only; scalars get their type by the rules below instead of YAML 1.1's."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (PyYAML's own attribute)
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Refuse what would nest too deeply for whoever reads it, and anchors that mean two things."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        anchor = getattr(event, "anchor", None)
        if self.depth >= _DEEPEST:
            raise yaml.MarkedYAMLError(
                problem=f"nested more than {_DEEPEST} levels deep", problem_mark=event.start_mark
            )
        if anchor in self.anchors and not isinstance(event, yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem=f"the anchor &{anchor} is given twice", problem_mark=event.start_mark)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


class _Dumper(yaml.SafeDumper):
    """Quotes text that the rules of either YAML version would read as something else."""

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
"""The core schema of YAML 1.2.2 (10.3.2): what a plain scalar means, and the characters that it starts with."""

_TAG = "tag:yaml.org,2002:"

for _kind, (_pattern, _starts) in _SCALARS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"{_TAG}{_kind}", re.compile(f"^(?:{_pattern})$"), _starts)


def _read(text: str, place_of: Callable[[int], Place], problems: list[Problem]) -> Node:
    """Compose YAML text into nodes; broken YAML raises, everything else is added to `problems`."""
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
    """Turns composed YAML into nodes; a value's place is the line of its key."""

    place_of: Callable[[int], Place]
    problems: list[Problem]
    _converted: set[int] = attrs.field(factory=set)
    """Ids of the composed nodes so far."""
    _repeated: int = 0
    """Nodes that were converted once more, for an alias."""

    def convert(self, node: yaml.Node, place: Place, parents: tuple[yaml.Node, ...] = ()) -> Node:
        if any(node is parent for parent in parents):
            return self._problem(place, "a section refers to itself")
        self._repeated += id(node) in self._converted
        self._converted.add(id(node))
        if self._repeated > _MOST_REPEATED:
            raise ConfigError(
                f"{place.text}: aliases repeat more than {_MOST_REPEATED:,} values; write some of them out"
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
