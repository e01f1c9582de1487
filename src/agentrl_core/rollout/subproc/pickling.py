"""Find the attribute or item that keeps a workflow or a task from being pickled: `MyAgent.client.lock`."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

_DEEPEST = 12
"""Levels of attributes and items that are searched."""


@attrs.frozen
class Obstacle:
    """A part of an object that cannot be pickled."""

    path: str
    """Attributes and items that lead from the object to this part."""
    problem: str
    """pickle's own message: `cannot pickle '_thread.lock' object`."""

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


def find_obstacle(value: object, path: str) -> Obstacle | None:
    """Return the innermost attribute or item that cannot be pickled; None if everything can."""
    return _search(value, path, _DEEPEST, set())


def _search(value: object, path: str, depth: int, seen: set[int]) -> Obstacle | None:
    problem = _problem(value)
    # `seen` ends the search in objects that refer to each other.
    if problem is None or id(value) in seen:
        return None
    seen.add(id(value))
    for name, part in _parts(value) if depth else ():
        inner = _search(part, f"{path}{name}", depth - 1, seen)
        if inner is not None:
            return inner
    return Obstacle(path, problem)


def _problem(value: object) -> str | None:
    try:
        pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001 - objects may raise anything when pickled
        return " ".join(str(error).split()) or type(error).__name__
    return None


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """Yield the attributes and items of an object that pickle would visit."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif not isinstance(value, type):
        state: Any = getattr(value, "__dict__", None) or {}
        yield from ((f".{name}", item) for name, item in state.items())
        for base in type(value).__mro__:
            slots = vars(base).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, name):
                    yield f".{name}", getattr(value, name)
        # The parts of a `functools.partial` and of a bound method.
        for name in ("func", "args", "keywords", "__self__"):
            if name not in state and hasattr(value, name):
                yield f".{name}", getattr(value, name)
