"""Advisory lock of a folder that one process writes; other processes can tell whether that process is alive.

A lock ends with its process, even if that crashes. Other machines see it only if their network filesystem supports
`flock` (NFS does, Lustre with the mount option `flock`). Without that, a folder that another machine holds looks
abandoned here.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentrl_core.stores.files import private_opener

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LOCK = ".lock"

_TRIES, _PAUSE_S = 20, 0.01
"""`is_abandoned` holds the lock for a moment, so `folder_lock` tries again that often, with that pause."""


class FolderInUseError(Exception):
    """Another process holds the folder's lock; the message is its pid."""


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; `FolderInUseError` if another process has it, `OSError` if locking is impossible."""
    with open(folder / _LOCK, "a+", encoding="ascii", opener=private_opener) as file:
        for tries_left in reversed(range(_TRIES)):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not tries_left:
                    file.seek(0)
                    raise FolderInUseError(file.read().strip() or "?") from None
            time.sleep(_PAUSE_S)
        # The pid is only for messages. The lock itself is `flock`'s, which the kernel releases at the end of the
        # process.
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def is_abandoned(folder: Path) -> bool:
    """Return whether the process that held the folder's lock is gone; False if that cannot be told."""
    try:
        with (folder / _LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        # The lock is held, or there is none, or the filesystem has no locks.
        return False
    return True


def holder(folder: Path) -> str:
    """Return the pid of the process that holds the folder's lock; empty if none does or that cannot be told."""
    try:
        with (folder / _LOCK).open("r", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip()
    except OSError:
        pass
    return ""
