"""Write policy versions as model directories that a model server on the same file system can load.

Imports torch only when weights are written.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_core.api.weights import DirectoryWeights
from agentrl_core.concurrency.threads import call_on_thread
from agentrl_core.stores.folder_lock import FolderInUseError, folder_lock, is_abandoned
from agentrl_core.weights.saving import check_module, disk_errors, save_module

if TYPE_CHECKING:
    from agentrl_core.api.weights import WeightSource

_PREFIX = "agentrl-weights-"
_BOOT_ID = "boot_id"
"""File with the id of the boot in which a folder was made. A folder's lock shows only within the same boot of the same
machine whether the folder is abandoned."""


class WeightsFolder:
    """Folder in `root` that only this process writes, removed by `close`; a server reads it under the same path.

    `root` may contain anything else, such as weights of other runs, and a server of another user may read it; None: a
    temporary folder. Folders that killed processes left in `root` are removed when the next process makes its folder.
    """

    def __init__(self, root: Path | None) -> None:
        self._root = None if root is None else root.absolute()
        self._own: Path | None = None
        self._lock = ExitStack()

    async def directory(self, version: int, source: WeightSource) -> Path:
        """Return a model directory with the weights; a live module is written to a new one, which replaces the last.

        Writes on a thread, so the event loop is not blocked. Raises `EngineError` if the disk fails or a weight is not
        finite.
        """
        if isinstance(source, DirectoryWeights):
            return Path.cwd() / source.path
        module = source.module
        return await call_on_thread(lambda: self._write(module, version), name="weights")

    def close(self) -> None:
        """Remove the folder; idempotent."""
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)
            self._own = None
        self._lock.close()

    def _write(self, module: Any, version: int) -> Path:
        check_module(module, version)
        with disk_errors(version, self._own or self._root or Path(tempfile.gettempdir()), "engine.weights_dir"):
            own = self._folder()
            for earlier in own.glob("version-*"):
                shutil.rmtree(earlier)
            directory = own / f"version-{version}"
            save_module(module, directory, version)
        return directory

    def _folder(self) -> Path:
        """Return the folder of this process; the first call makes it and removes abandoned ones."""
        if self._own is not None:
            return self._own
        if self._root is None:
            self._own = Path(tempfile.mkdtemp(prefix=_PREFIX))
            return self._own
        self._root.mkdir(parents=True, exist_ok=True)
        for other in self._root.glob(f"{_PREFIX}*"):
            if _boot_of(other) == _boot_id() and is_abandoned(other):
                shutil.rmtree(other, ignore_errors=True)
        own = self._root / f"{_PREFIX}{uuid.uuid4().hex[:12]}"
        own.mkdir()
        self._own = own
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
