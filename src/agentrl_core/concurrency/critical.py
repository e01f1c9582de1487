"""Sections of the main thread that no signal handler may leave by an exception, because they would leave a lock held.

A handler that raises does so between any two instructions, also between taking a lock and the `try` that releases it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_depth = 0
_postponed: Callable[[], None] | None = None


@contextmanager
def critical() -> Iterator[None]:
    """Postpone what handlers pass to `postpone` to the end of the block; nothing on other threads than the main one."""
    global _depth, _postponed  # noqa: PLW0603 - signals belong to the process
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if not _depth and _postponed is not None:
            postponed, _postponed = _postponed, None
            postponed()


def postpone(handling: Callable[[], None]) -> bool:
    """Return whether the main thread is in a critical section; then `handling` is called at the section's end."""
    global _postponed  # noqa: PLW0603
    if _depth:
        _postponed = handling
    return _depth > 0
