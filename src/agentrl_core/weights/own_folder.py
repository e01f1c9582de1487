"""Folder that one process alone writes, beside those of others, and that goes with the process."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path

from agentrl_core.stores.folder_lock import FolderInUseError, folder_lock, is_abandoned

_PREFIX = "agentrl-weights-"
_BOOT_ID = "boot_id"
"""File with the id of the boot in which a folder was made. A folder's lock shows only within the same boot of the same
machine whether the folder is abandoned."""


class OwnFolder:
    """Folder in `root` that only this process writes, removed by `close`; None: a temporary folder.

    `root` may contain anything else, such as weights of other runs. Folders that killed processes left in `root` are
    removed when the next process makes its folder.
    """

    def __init__(self, root: Path | None) -> None:
        self._root = None if root is None else root.absolute()
        self._own: Path | None = None
        self._lock = ExitStack()

    @property
    def place(self) -> Path:
        """The folder, or what contains it as long as it is not made; for messages."""
        return self._own or self._root or Path(tempfile.gettempdir())

    def path(self) -> Path:
        """Return the folder; the first call makes it, and removes abandoned ones."""
        if self._own is None:
            self._own = self._make()
        return self._own

    def close(self) -> None:
        """Remove the folder; idempotent."""
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)
            self._own = None
        self._lock.close()

    def _make(self) -> Path:
        # A temporary folder gets a lock, too: the next process that uses the same one removes what a killed one left.
        root = self._root or Path(tempfile.gettempdir())
        root.mkdir(parents=True, exist_ok=True)
        for other in root.glob(f"{_PREFIX}*"):
            if _boot_of(other) == _boot_id() and is_abandoned(other):
                shutil.rmtree(other, ignore_errors=True)
        if self._root is None:
            own = Path(tempfile.mkdtemp(prefix=_PREFIX))
        else:
            own = root / f"{_PREFIX}{uuid.uuid4().hex[:12]}"
            own.mkdir()
        # On a network file system without locks the folder gets no boot id, so no other process removes it. The boot id
        # is written last for the same reason: a folder without one may not be locked yet.
        with suppress(FolderInUseError, OSError):
            self._lock.enter_context(folder_lock(own))
            (own / _BOOT_ID).write_text(_boot_id(), encoding="ascii")
        return own


def _boot_id() -> str:
    """Return the id of this boot of this machine; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _boot_of(folder: Path) -> str:
    """Return the id of the boot in which a folder was made; `unknown`, which equals no boot id, if it has none."""
    try:
        return (folder / _BOOT_ID).read_text(encoding="ascii").strip() or "unknown"
    except OSError:
        return "unknown"
