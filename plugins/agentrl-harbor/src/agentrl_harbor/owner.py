"""`Owner`: a folder with a lock that this process holds while it lives, by which leftovers of killed runs are known."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PREFIX: Final = "agentrl-harbor-"
_LOCK: Final = "lock"


class Owner:
    """A locked folder for the sandboxes of one provider; the kernel releases the lock even if the process is killed."""

    def __init__(self, parent: str | None = None) -> None:
        # The folder gets its name once the lock is taken, else another process could take it for a leftover.
        begun = Path(tempfile.mkdtemp(prefix=f"begun-{_PREFIX}", dir=parent))
        self._descriptor = os.open(begun / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        self.folder = begun.rename(begun.with_name(begun.name.removeprefix("begun-")))

    def close(self) -> None:
        """Remove the folder and release the lock."""
        remove_tree(self.folder)
        os.close(self._descriptor)


def is_alive(folder: Path) -> bool:
    """Return whether the process that made a folder still runs."""
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError:  # another user's: it is not ours to remove
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def left_behind(parent: str | None = None) -> Iterator[Path]:
    """Yield the folders of processes that were killed."""
    for folder in Path(parent or tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if folder.is_dir() and not is_alive(folder):
            yield folder


def remove_tree(folder: Path) -> None:
    """Remove a folder, even if folders in it are write-protected."""
    if not folder.exists():
        return
    for parent, names, _ in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
