"""Write policy versions as model directories that a model server on the same file system can load.

Imports torch only when weights are written.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_core.api.weights import DirectoryWeights
from agentrl_core.weights.own_folder import OwnFolder
from agentrl_core.weights.saving import check_module, disk_errors, save_module

if TYPE_CHECKING:
    from agentrl_core.api.weights import WeightSource


class WeightsFolder:
    """Model directories in an `OwnFolder` of `root`; a server, also one of another user, reads them under that path.

    `dtype` is the type that weights are written in, by its name in torch; None: the module's own.
    """

    def __init__(self, root: Path | None, *, dtype: str | None = None) -> None:
        self._own = OwnFolder(root)
        self._dtype = dtype

    def write(self, version: int, source: WeightSource) -> Path:
        """Return a model directory with the weights; a live module is written to a new one, which replaces the last.

        Blocks while it writes. Raises `EngineError` if the disk fails or a weight is not finite.
        """
        if isinstance(source, DirectoryWeights):
            return Path.cwd() / source.path
        check_module(source.module, version)
        with disk_errors(version, self._own.place, "engine.weights_dir"):
            own = self._own.path()
            for earlier in own.glob("version-*"):
                shutil.rmtree(earlier)
            directory = own / f"version-{version}"
            save_module(source.module, directory, version, dtype=self._dtype)
        return directory

    def close(self) -> None:
        """Remove the folder; idempotent."""
        self._own.close()
