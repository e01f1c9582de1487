"""Write the weights of this process where a model server can read them; needs no torch."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_core.daemons import call_on_thread
from agentrl_core.errors import EngineError
from agentrl_core.weights.base import DirectoryWeights

if TYPE_CHECKING:
    from agentrl_core.weights.base import WeightSource


class WeightsFolder:
    """A folder that a server sees under the same path; a temporary one, removed by `close`, where `root` is None."""

    def __init__(self, root: Path | None) -> None:
        self._root = None if root is None else root.absolute()
        self._temporary: Path | None = None

    async def directory(self, version: int, source: WeightSource) -> Path:
        """Return a directory with the weights; a live module is written into one, and the one before goes."""
        if isinstance(source, DirectoryWeights):
            return Path.cwd() / source.path
        if self._root is None:
            self._root = self._temporary = Path(tempfile.mkdtemp(prefix="agentrl-weights-"))
        root, module = self._root, source.module
        save: Any = getattr(module, "save_pretrained", None)
        if save is None:
            raise EngineError(f"weights of {type(module).__name__}: only models of transformers can be written")
        directory = root / f"version-{version}"

        def write() -> None:
            for old in root.glob("version-*"):
                shutil.rmtree(old)
            save(directory)

        await call_on_thread(write, name="weights")
        return directory

    def close(self) -> None:
        """Remove a temporary folder; idempotent."""
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
