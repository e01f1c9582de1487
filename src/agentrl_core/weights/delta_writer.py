"""Publish versions as deltas: keep the last whole one on the trainer's machine, and decide what each next one is."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_core.weights.delta import begin_chain, copy_whole, write_delta
from agentrl_core.weights.own_folder import OwnFolder
from agentrl_core.weights.saving import folder_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_WORTH = 0.5
"""Largest share of a whole version's bytes at which a delta is published: above it, the time to compute and to apply it
costs more than the bytes that it saves."""


class DeltaWriter:
    """Writer of one trainer's versions, each as a delta to the one before, or whole.

    A version is whole if it is the trainer's first, every `full_every` versions, and where a delta would not be worth
    it. `local` is a folder on the trainer's own machine for two whole copies; None: the system's temporary folder.
    """

    def __init__(self, local: Path | None, *, full_every: int = 20, threads: int = 1) -> None:
        if full_every < 1 or threads < 1:
            raise ValueError(f"full_every and threads: expected at least 1, found {full_every} and {threads}")
        self._own = OwnFolder(local)
        self._full_every, self._threads = full_every, threads
        self._base: tuple[int, Path] | None = None
        self._num_deltas = 0
        self._prepared: tuple[int, Path] | None = None
        self._is_delta = False

    @property
    def place(self) -> Path:
        """Folder of the whole copies, for messages."""
        return self._own.place

    def prepare(self, version: int, save: Callable[[Path], None]) -> None:
        """Have `save(folder)` write a version whole on this machine."""
        new = self._own.path() / f"version-{version}"
        if self._base is not None and self._base[1] == new:  # published once more
            self._base = None
        for leftover in self._own.path().glob("version-*"):
            if self._base is None or leftover != self._base[1]:
                shutil.rmtree(leftover)
        save(new)
        self._prepared = version, new

    def draft(self, draft: Path, *, published: set[int]) -> None:
        """Write the prepared version to the folder `draft`; `published` are the earlier versions that servers can see.

        The next version builds on this one only after `commit`.
        """
        assert self._prepared is not None  # noqa: S101 (called after `prepare`)
        version, new = self._prepared
        self._is_delta = self._write(version, new, draft, published)

    def commit(self) -> None:
        """Make the last draft, which servers can see now, the base of the next delta."""
        if self._base is not None:
            shutil.rmtree(self._base[1], ignore_errors=True)
        self._base, self._prepared = self._prepared, None
        self._num_deltas = self._num_deltas + 1 if self._is_delta else 0

    def close(self) -> None:
        """Remove the copies; idempotent."""
        self._own.close()

    def _write(self, version: int, new: Path, draft: Path, published: set[int]) -> bool:
        """Write a delta if that is due and worth it, else the whole version; return whether it is a delta."""
        if self._base is not None and self._base[0] in published and self._num_deltas + 1 < self._full_every:
            base_version, base = self._base
            try:
                write_delta(base, new, draft, version=version, base_version=base_version, threads=self._threads)
            except (ValueError, FileNotFoundError) as error:
                logger.warning("version %d is published whole; of version %d: %s", version, base_version, error)
                shutil.rmtree(draft, ignore_errors=True)
                self._base = None
                return self._write(version, new, draft, published)
            whole = folder_bytes(new)
            share = folder_bytes(draft) / whole
            if share <= _WORTH:
                return True
            shutil.rmtree(draft)
            logger.warning(
                "version %d is published whole: its delta has %.0f %% of the bytes. Deltas pay for weights in "
                "bfloat16, of which a step changes few; set weights.dtype: bfloat16, or weights.publish: disk",
                version,
                100 * share,
            )
        copy_whole(new, draft)
        begin_chain(draft)
        return False
