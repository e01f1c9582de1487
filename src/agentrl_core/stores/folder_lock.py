"""Locks of folders that one process writes: others can tell whether it is alive.

A lock ends with its process, however that ends. Other machines see it only where their network filesystem carries
`flock` (NFS does, Lustre with the mount option `flock`): without that, what another machine holds looks abandoned here.
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
"""Whoever asks whether a folder is abandoned holds its lock for a moment; who wants it tries again for so long."""


class FolderInUseError(Exception):
    """Another process holds the folder's lock; the message is its id."""


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; `FolderInUseError` where another process does, `OSError` where none can be made."""
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
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def is_abandoned(folder: Path) -> bool:
    """Return whether the process that held the folder's lock is gone; False where that cannot be told."""
    try:
        with (folder / _LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # it is held; there is none; the filesystem has no locks
        return False
    return True
