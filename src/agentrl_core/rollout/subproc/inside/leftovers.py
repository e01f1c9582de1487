"""Tell the processes that an episode left behind from those that the agent holds on to, as a pool in an attribute.

A process is kept if an object that stands for it (`Popen`, …) can be reached from the agent or from a module. The
worker kills all others after the episode.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

_NUMBERS = {"Popen": "pid", "PtyProcess": "pid", "ResourceTracker": "_pid", "ForkServer": "_forkserver_pid"}
"""Class whose objects stand for a process -> the attribute that holds its pid. Besides subprocess's own `Popen`,
each Process of multiprocessing and loky holds one, and so do their pools."""
_SERVANTS = ("ResourceTracker", "ForkServer")
"""Helpers that serve the interpreter for its whole life. Processes that a fork server forked are not kept because of
it."""
_REGISTRIES = (
    ("subprocess", "_active"),
    ("multiprocessing.process", "_children"),
    ("multiprocessing.util", "_finalizer_registry"),
    ("threading", "_active"),
    ("weakref", "finalize._registry"),
    ("asyncio.events", "_event_loop_policy"),
)
"""Registries of the standard library that hold every process or thread until its end, so they say nothing about use."""
_EARLY = ("multiprocessing", "agentrl_core.concurrency.processes", "joblib", "loky")
"""Modules that are searched first, because they are likely to hold a process."""
_BATCH = 256
"""Objects whose referents are requested in one call."""
_SECOND_LOOK_S = 0.1
"""Wait before the second look: a pool's thread may be starting a process that is in no list yet, and another process
may be about to end by itself."""


class Leftovers:
    """Processes below a worker, without those that it has from the start and those that the agent keeps.

    `agent` is the callable of the episodes. `children(pid)` returns the child processes of `pid`. `above` is the
    process that inherits the orphans of everything below it (the guard), and `own` is the worker.
    """

    def __init__(self, agent: object, children: Callable[[int], Sequence[int]], *, own: int, above: int) -> None:
        self._agent, self._children, self._own, self._above = agent, children, own, above
        self._first = set(self._below(()))

    def find(self) -> list[int]:
        """Return the pids of processes that nothing keeps; takes two looks, 0.1 s apart, where the first finds any."""
        left = self._look()
        if left:
            time.sleep(_SECOND_LOOK_S)
            again = self._look()
            left = [pid for pid in left if pid in again]
        return left

    def _look(self) -> list[int]:
        # Forget pids that have ended: the system reuses numbers.
        self._first.intersection_update(self._below(()))
        unknown = self._below(self._first)
        if not unknown:
            return []
        kept, servants = reachable(unknown, self._agent)
        return [pid for pid in self._below(self._first | kept) if pid not in servants]

    def _below(self, kept: Collection[int]) -> list[int]:
        """Return the processes below, without those that are `kept` and the processes below these."""
        found, parents = [], [self._above]
        while parents:
            children = [pid for pid in self._children(parents.pop()) if pid not in kept]
            parents += children
            found += children
        return [pid for pid in found if pid != self._own]


def reachable(processes: Sequence[int], agent: object) -> tuple[set[int], set[int]]:
    """Return the processes that are kept because their object can be reached from the agent or from a module.

    The second set holds those among them that serve the interpreter. Event loops, tracebacks and the standard library's
    own registries do not count: they hold every process of an episode.
    """
    kept: set[int] = set()
    servants: set[int] = set()
    search = _Search()
    wanted = search.alive().intersection(processes)
    modules = list(sys.modules.values())
    # The search stops once every wanted process is found, so the likely modules go first.
    modules.sort(key=lambda module: not getattr(module, "__name__", "").startswith(_EARLY))
    spaces = [vars(module) if isinstance(module, types.ModuleType) else module for module in modules]
    for roots, others in (([agent], spaces), (spaces, [])):
        for number, name in search.walk(roots, without=others) if wanted else ():
            (servants if name in _SERVANTS else kept).add(number)
            wanted.discard(number)
            if not wanted:
                break
    return kept, servants


class _Search:
    """Finds the objects that stand for processes by following references; visits each object once."""

    def __init__(self) -> None:
        self._classes: dict[type, str | None] = {}
        registries = (_found(module, path) for module, path in _REGISTRIES)
        self._seen = {id(item) for item in registries if item is not None}

    def alive(self) -> set[int]:
        """Return the pids of all processes that some object stands for; no search can find the others."""
        given_up = set(map(id, _found("subprocess", "_active") or ()))
        objects = [item for item in gc.get_objects() if self._class(item) and id(item) not in given_up]
        return {number for item in objects for number, _ in self._process(item)}

    def walk(self, roots: Sequence[object], *, without: Sequence[object]) -> Iterator[tuple[int, str]]:
        """Yield pid and class of each process that can be reached from `roots`, but not through `without`."""
        apart = set(map(id, without))
        pending: list[object] = []
        found: Iterable[object] = roots
        while True:
            for item in found:
                if id(item) in self._seen or id(item) in apart or not gc.is_tracked(item):
                    continue
                self._seen.add(id(item))
                name = self._class(item)
                if name != "":
                    pending.append(item)
                    if isinstance(item, threading.local):
                        pending.append(vars(item))
                if name:
                    yield from self._process(item)
            if not pending:
                return
            found = gc.get_referents(*pending[-_BATCH:])
            del pending[-_BATCH:]

    def _class(self, item: object) -> str | None:
        """Return the class by which an object stands for a process; "" for one that must not be followed; else None."""
        # Not `item.__class__`, which may be a property with anybody's code.
        kind = type(item)
        if kind not in self._classes:
            names = [base.__name__ for base in kind.__mro__]
            through = not {"AbstractEventLoop", "traceback", "module"}.intersection(names)
            self._classes[kind] = next((name for name in names if name in _NUMBERS), None if through else "")
        return self._classes[kind]

    def _process(self, item: Any) -> Iterator[tuple[int, str]]:
        """Yield pid and class of a process; nothing if it was never started."""
        name = self._class(item) or ""
        number = getattr(item, "__dict__", {}).get(_NUMBERS[name])
        if isinstance(number, int):
            yield number, name


def _found(module: str, path: str) -> Any:
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    return found
