"""Folder of published policy versions, through which the trainer hands weights to servers in other processes.

A version is the folder `version-N` with a model, its tokenizer and a manifest. The trainer writes it under another
name and renames it, so a version is whole or absent; a disk that damages it later is found by the manifest's digests.
"""

from __future__ import annotations

import fcntl
import re
import shutil
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from agentrl_core.errors import WeightsError
from agentrl_core.stores.files import replace_folder, restore_replaced
from agentrl_core.weights.manifest import MANIFEST, peek_manifest, read_manifest
from agentrl_core.weights.saving import check_module, disk_errors, save_module

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class WeightsPlace:
    """Versions in `root`, which one trainer writes and any number of servers read, on any machine that has the folder.

    The newest `keep` versions stay, and those that a server is reading. What a killed trainer left half written is
    removed with the next version.
    """

    def __init__(self, root: Path, *, keep: int = 2) -> None:
        self.root = root
        self._keep = keep

    def write(self, version: int, module: Any, *, companions: Any = None) -> Path:
        """Publish a module's weights, and return their folder; blocks while it writes.

        `companions.write(folder)` adds the files that a server needs beside the weights, such as the tokenizer. Raises
        `EngineError` if the disk fails or a weight is not finite; no version is visible then.
        """
        check_module(module, version)
        directory = self.root / f"version-{version}"
        draft = self.root / f".version-{version}.draft"
        try:
            with disk_errors(version, self.root, "weights.place"):
                self.root.mkdir(parents=True, exist_ok=True)
                self._clean()
                save_module(module, draft, version, companions=companions, with_canary=True)
                replace_folder(draft, directory)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        self._prune()
        return directory

    def versions(self) -> list[int]:
        """Return the published versions, the newest first."""
        found = (re.fullmatch(r"version-(\d+)", path.name) for path in self.root.glob("version-*"))
        return sorted((int(match[1]) for match in found if match), reverse=True)

    @contextmanager
    def reading(self, version: int) -> Iterator[Path]:
        """Yield the folder of a version, which the trainer does not remove meanwhile; blocks while it is verified.

        Raises `WeightsError` if a file is missing or not as it was written.
        """
        directory = self.root / f"version-{version}"
        with ExitStack() as held:
            try:
                manifest = held.enter_context((directory / MANIFEST).open("rb"))
                fcntl.flock(manifest, fcntl.LOCK_SH | fcntl.LOCK_NB)
                _verify(directory, version)
            except FileNotFoundError as error:
                message = f"version {version} of the weights is not in {self.root}: {error.filename} is missing"
                raise WeightsError(message) from error
            except BlockingIOError as error:
                message = f"version {version} of the weights is just being removed from {self.root}"
                raise WeightsError(message) from error
            yield directory

    def _clean(self) -> None:
        """Remove what killed trainers left: drafts, and versions that were half removed."""
        restore_replaced(self.root)
        for leftover in self.root.glob(".version-*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _prune(self) -> None:
        """Remove old versions; one that cannot be removed now goes with a later one."""
        for version in self.versions()[self._keep :]:
            directory = self.root / f"version-{version}"
            with suppress(OSError), (directory / MANIFEST).open("r+b") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Under another name first, so that nobody begins to read a version that is half removed.
                gone = directory.replace(directory.with_name(f".{directory.name}.gone"))
                shutil.rmtree(gone, ignore_errors=True)


def _verify(directory: Path, version: int) -> None:
    try:
        # The manifest alone first: reading the weights may take minutes.
        found = peek_manifest(directory)
        if found is None or found.version != version:
            raise WeightsError(f"{directory} is damaged: its manifest is not that of version {version}")
        read_manifest(directory)
    except ValueError as error:
        raise WeightsError(f"version {version} of the weights is refused: {error}") from error
