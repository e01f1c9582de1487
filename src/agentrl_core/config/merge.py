"""Merge of single assignments (`trainer.lr = 1e-6`) into one tree: first the config file's, then the overrides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from agentrl_core.config.nodes import Assignment, Node, Place, Problem, describe, from_python


@attrs.frozen
class ConfigTree:
    """Tree of config values that assignments change in place."""

    root: Node
    default_of: Callable[[str], Any]
    """Function that returns the default of a top-level option, or None; overrides can reach into default lists."""
    notes: list[str] = attrs.field(factory=list)
    """Notes on options of the file that lost their component to an override."""

    def assign(self, assignment: Assignment) -> list[Problem]:
        """Set one option, and return a problem if a value on its path is not a section or list.

        Missing sections on the path are created. A number selects an item of a list (`trackers.0.use`); the number
        after the last item appends one. A bare string on the path is a component's name and becomes a section
        (`trackers.0.level` of `trackers: [console]`).
        """
        *way, last = assignment.path
        node = self.root
        try:
            for name in way:
                node = self._enter(node, name, assignment.node.place)
            if last == "use" and assignment.node.place.is_override and isinstance(node.value, dict):
                node = self._begin_component(way, node, assignment)
            if isinstance(node.value, list):
                _put(node.value, last, assignment.node)
            # An empty section only marks a place: it arrives before the section's options, and must not replace a
            # section that has options already, by an alias, by the file, or by an earlier override.
            elif assignment.node.value != {} or not isinstance(getattr(node.value.get(last), "value", None), dict):
                node.value[last] = assignment.node
        except _NoWayError as error:
            return [Problem(assignment.node.place, f"{assignment.spelled}: {error}")]
        return []

    def _begin_component(self, way: Sequence[str], section: Node, assignment: Assignment) -> Node:
        """Return the section of a component that an override may replace; another component starts without options.

        The options that the file gives belong to the component that it names. Options of the command line stay.
        """
        default = self.default_of(way[0]) if len(way) == 1 else None
        current = from_python(default, section.place).value | section.value if default else section.value
        if "use" not in current or current["use"].value == assignment.node.value:
            return section
        kept = {name: node for name, node in section.value.items() if _stays(way, name, node)}
        if dropped := [name for name in section.value if name not in kept and name != "use"]:
            options = ", ".join(".".join((*way, name)) for name in dropped)
            self.notes.append(
                f"{assignment.node.place.text}: leaves out {options} ({section.place.text}), set for "
                f"{current['use'].value}; to use an option again, name it on the command line"
            )
        # A new node, whose place is the command line: that is where messages about the component have to point.
        begun = Node(kept, assignment.node.place)
        parent = self.find(way[:-1]).value
        if isinstance(parent, list):
            _put(parent, way[-1], begun)
        else:
            parent[way[-1]] = begun
        return begun

    def find(self, path: Sequence[str]) -> Node:
        """Return the node at `path`, or the nearest section around it that exists."""
        node = self.root
        for name in path:
            child = _lookup(node.value, name)
            if child is None:
                break
            node = child
        return node

    def _enter(self, parent: Node, name: str, place: Place) -> Node:
        """Return the section or list `name` of `parent`; create it if it is missing."""
        child = _lookup(parent.value, name)
        if child is None and parent is self.root and isinstance(default := self.default_of(name), list):
            child = from_python(default, place)
        if child is None or child.value is None:
            child = Node({}, place)
        elif isinstance(child.value, str):
            child = Node({"use": child}, child.place)
        elif not isinstance(child.value, dict | list):
            raise _NoWayError(f"{name} is {describe(child.value)} ({child.place.text}), not a section")
        if isinstance(parent.value, list):
            _put(parent.value, name, child)
        else:
            parent.value[name] = child
        return child


def _stays(way: Sequence[str], name: str, node: Node) -> bool:
    """Return whether an option outlives its component; `model.dtype` belongs to no builder."""
    return node.place.is_override or node.place.stays or ([*way], name) == (["model"], "dtype")


class _NoWayError(Exception):
    """Raised if an option cannot be set at its path."""


def _lookup(section: Any, name: str) -> Node | None:
    if isinstance(section, dict):
        return section.get(name)
    if isinstance(section, list) and name.isdecimal() and int(name) < len(section):
        item: Node = section[int(name)]
        return item
    return None


def _put(items: list[Node], name: str, node: Node) -> None:
    """Set one item of a list, or append one."""
    if not name.isdecimal() or int(name) > len(items):
        raise _NoWayError(f"expected an index from 0 to {len(items)} into the list, found {name}")
    items[int(name) : int(name) + 1] = [node]
