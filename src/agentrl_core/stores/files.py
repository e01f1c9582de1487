"""Private and durable files for a run: readable by their owner only, and flushed before others rely on them."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import attrs

_OWNER_ONLY = 0o700
_FORMER = ".former"
"""End of the name of a folder that is being replaced."""


def private_opener(path: str, flags: int) -> int:
    """Open a file for `open(…, opener=private_opener)` that only its owner can read and write, whatever the umask."""
    descriptor = os.open(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def make_private_folder(path: Path) -> None:
    """Create a folder, and its parents, that only its owner can enter; `FileExistsError` if it exists already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=_OWNER_ONLY)
    # `mkdir` applies the umask, which may have removed even the owner's rights.
    path.chmod(_OWNER_ONLY)


def make_private(root: Path) -> None:
    """Remove all others' access to a file, or to a folder and everything below it.

    Does not follow links, and leaves other users' files alone.
    """
    if not root.is_dir():
        _restrict(str(root))
    for folder, _, names in os.walk(root):
        for path in (folder, *(os.path.join(folder, name) for name in names)):  # noqa: PTH118 - as os.walk gives them
            # A file may vanish meanwhile, such as the log of a reader that just closed the store.
            with contextlib.suppress(FileNotFoundError):
                _restrict(path)


@attrs.frozen(kw_only=True)
class Writer:
    """Process that writes folders of a run; its drafts have its name, so that no other one writes the same draft."""

    name: str = ""
    """Id of the member; empty for a run without members."""
    check: Callable[[], None] = lambda: None
    """Raises an error if the process may not write any more; asked just before a draft gets its name."""
    gone: frozenset[str] = frozenset()
    """Writers that have ended, so that their drafts can go; a writer's name is never used again."""

    def draft(self, folder: Path) -> Path:
        """Return the path of this writer's draft of a folder."""
        return folder.with_name(f".{'.'.join(filter(None, (folder.name, self.name)))}.draft")

    def remove_drafts(self, folder: Path) -> None:
        """Remove the drafts of a folder, and of those that differ in their number, that gone writers left behind."""
        for draft in folder.parent.glob(f".{folder.name.partition('-')[0]}*.draft"):
            owner = draft.name.removesuffix(".draft").partition(".")[2].partition(".")[2]
            if owner in {"", self.name, *self.gone}:
                shutil.rmtree(draft, ignore_errors=True)


UNNAMED = Writer()
"""The only process that writes a run without members."""


def flush_to_disk(root: Path) -> None:
    """Return once a file, or a folder with everything below it, survives a power cut; its parent is not included."""
    for folder, _, names in os.walk(root):
        for path in (*(os.path.join(folder, name) for name in names), folder):  # noqa: PTH118 - as os.walk gives them
            flush_entry(path)
    if root.is_file():
        flush_entry(root)


def flush_entry(path: str | Path) -> None:
    """Return once the content of one file, or the list of names in one folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_folder(draft: Path, directory: Path) -> None:
    """Rename `draft` to `directory`; a folder of that name is removed once the new name is on the disk.

    A rename cannot replace a folder that is not empty, so the former one moves aside first. If this process dies in
    between, `restore_replaced` gives it its name back.
    """
    try:
        if directory.exists():
            directory.replace(directory.with_name(f".{directory.name}{_FORMER}"))
        draft.replace(directory)
        flush_entry(directory.parent)
    finally:
        with contextlib.suppress(OSError):  # the next replacement tries again
            restore_replaced(directory.parent)


def restore_replaced(parent: Path) -> None:
    """Give folders that moved aside for a replacement their names back; remove those whose replacement is there."""
    for former in parent.glob(f".*{_FORMER}"):
        directory = former.with_name(former.name[1:].removesuffix(_FORMER))
        if directory.exists():
            shutil.rmtree(former, ignore_errors=True)
        else:
            former.replace(directory)


def _restrict(path: str) -> None:
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid():
        return
    mode = stat.S_IMODE(found.st_mode)
    wanted = _OWNER_ONLY if stat.S_ISDIR(found.st_mode) else (mode & _OWNER_ONLY) | 0o600
    if mode != wanted:
        os.chmod(path, wanted)  # noqa: PTH101 - as os.walk gives it
