"""Write the weights of this process where a model server can read them; needs no torch before that."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_core.api.weights import DirectoryWeights
from agentrl_core.concurrency.threads import call_on_thread
from agentrl_core.errors import EngineError
from agentrl_core.stores.folder_lock import FolderInUseError, folder_lock, is_abandoned
from agentrl_core.weights.finite import not_finite
from agentrl_core.weights.manifest import write_manifest

if TYPE_CHECKING:
    from agentrl_core.api.weights import WeightSource

_PREFIX = "agentrl-weights-"
_BOOT_ID = "boot_id"
"""Names the boot of the machine that a folder was made in: only there its lock tells whether it is abandoned."""


class WeightsFolder:
    """A folder of this process's own in `root`, which a server sees under the same path; removed by `close`.

    `root` may hold anything else, other runs' weights among it, and a server of another user may read there; None is
    a temporary folder. What processes that were killed have left in `root` goes when the next one begins.
    """

    def __init__(self, root: Path | None) -> None:
        self._root = None if root is None else root.absolute()
        self._own: Path | None = None
        self._lock = ExitStack()

    async def directory(self, version: int, source: WeightSource) -> Path:
        """Return a directory with the weights; a live module is written into one, and the one before goes.

        Raises `EngineError` where the disk refuses, and for weights that are not finite.
        """
        if isinstance(source, DirectoryWeights):
            return Path.cwd() / source.path
        module = source.module
        if getattr(module, "save_pretrained", None) is None:
            raise EngineError(f"weights of {type(module).__name__}: only models of transformers can be written")
        return await call_on_thread(lambda: self._write(module, version), name="weights")

    def close(self) -> None:
        """Remove the folder; idempotent."""
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)
            self._own = None
        self._lock.close()

    def _write(self, module: Any, version: int) -> Path:
        from safetensors import SafetensorError

        if broken := not_finite(module):
            raise EngineError(
                f"version {version} is not published: {len(broken)} of the policy's weights hold NaN or infinite "
                f"numbers ({broken[0]} is the first); go on from an earlier checkpoint with a lower trainer.lr"
            )
        try:
            own = self._folder()
            for earlier in own.glob("version-*"):
                shutil.rmtree(earlier)
            directory = own / f"version-{version}"
            module.save_pretrained(directory)
            write_manifest(directory, version=version)
        except (OSError, RuntimeError, SafetensorError) as error:  # torch and safetensors wrap what the disk says
            where = self._own or self._root
            raise EngineError(
                f"cannot write the weights of version {version} to {where}: {error}; make room there, or set "
                "engine.weights_dir elsewhere"
            ) from error
        return directory

    def _folder(self) -> Path:
        """Return the folder of this process, made when it is first needed."""
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
        with suppress(FolderInUseError, OSError):  # a network filesystem without locks: nobody will remove the folder
            self._lock.enter_context(folder_lock(own))
            (own / _BOOT_ID).write_text(_boot_id(), encoding="ascii")  # last: what has none is not removed
        return own


def _boot_id() -> str:
    """Return what tells this boot of this machine from all others; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _boot_of(folder: Path) -> str:
    """Return in which boot a folder of weights was made; another text than any boot's where none is said."""
    try:
        return (folder / _BOOT_ID).read_text(encoding="ascii").strip() or "unknown"
    except OSError:
        return "unknown"
