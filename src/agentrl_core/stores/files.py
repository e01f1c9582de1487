"""The files of a run: only their owner reads them, and what others rely on is on the disk first."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

_OWNER_ONLY = 0o700


def private_opener(path: str, flags: int) -> int:
    """Open a file as `open(…, opener=private_opener)` does; whatever the umask, only its owner reads and writes it."""
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def make_private_folder(path: Path) -> None:
    """Create a folder, with its parents, that only its owner enters; `FileExistsError` if it is there already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=_OWNER_ONLY)
    path.chmod(_OWNER_ONLY)  # a umask may have taken even that


def make_private(root: Path) -> None:
    """Take everyone else's access to a file, or to a folder and all below it; not through links, nor other users'."""
    if not root.is_dir():
        _restrict(str(root))
    for folder, _, names in os.walk(root):
        for path in (folder, *(os.path.join(folder, name) for name in names)):  # noqa: PTH118 - as os.walk gives them
            with contextlib.suppress(FileNotFoundError):  # the log of a reader that just closed the store, for one
                _restrict(path)


def flush_to_disk(root: Path) -> None:
    """Return once a file, or a folder with all below it, survives a power cut; the folder around it is not included."""
    for folder, _, names in os.walk(root):
        for path in (*(os.path.join(folder, name) for name in names), folder):  # noqa: PTH118 - as os.walk gives them
            flush_entry(path)
    if root.is_file():
        flush_entry(root)


def flush_entry(path: str | Path) -> None:
    """Return once the content of one file, or the names in one folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _restrict(path: str) -> None:
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid():
        return
    mode = stat.S_IMODE(found.st_mode)
    wanted = _OWNER_ONLY if stat.S_ISDIR(found.st_mode) else (mode & _OWNER_ONLY) | 0o600
    if mode != wanted:
        os.chmod(path, wanted)  # noqa: PTH101 - as os.walk gives it
