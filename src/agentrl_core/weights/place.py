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
from agentrl_core.stores.files import UNNAMED, replace_folder, restore_replaced
from agentrl_core.weights.delta import read_base
from agentrl_core.weights.manifest import MANIFEST, peek_manifest, read_manifest
from agentrl_core.weights.saving import check_module, disk_errors, save_module

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agentrl_core.stores.files import Writer
    from agentrl_core.weights.delta_writer import DeltaWriter


class WeightsPlace:
    """Versions in `root`, which one trainer writes and any number of servers read, on any machine that has the folder.

    The newest `keep` versions stay, those that they build on, and those that a server is reading. What a killed trainer
    left half written is removed with the next version.
    """

    def __init__(
        self,
        root: Path,
        *,
        keep: int = 2,
        dtype: str | None = None,
        deltas: DeltaWriter | None = None,
        writer: Writer = UNNAMED,
    ) -> None:
        """Take a folder; `dtype` is the type to write weights in, and `deltas` makes a delta of most versions."""
        self.root = root
        self._keep, self._dtype, self._deltas, self._writer = keep, dtype, deltas, writer

    def write(self, version: int, module: Any, *, companions: Any = None) -> Path:
        """Publish a module's weights, and return their folder; blocks while it writes.

        `companions.write(folder)` adds the files that a server needs beside the weights, such as the tokenizer. Raises
        `EngineError` if the disk fails or a weight is not finite; no version is visible then.
        """
        check_module(module, version)
        directory = self.root / f"version-{version}"
        draft = self._writer.draft(directory)
        try:
            with disk_errors(version, self.root, "weights.place"):
                self.root.mkdir(parents=True, exist_ok=True)
                self._writer.remove_drafts(directory)
                self._clean()
                self._draft(version, module, draft, companions)
                self._writer.check()
                replace_folder(draft, directory)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        if self._deltas is not None:
            self._deltas.commit()
        self._prune()
        return directory

    def _draft(self, version: int, module: Any, draft: Path, companions: Any) -> None:
        def save(folder: Path) -> None:
            save_module(module, folder, version, companions=companions, dtype=self._dtype, with_canary=True)

        if self._deltas is None:
            save(draft)
            return
        with disk_errors(version, self._deltas.place, "weights.local"):
            self._deltas.prepare(version, save)
        self._deltas.draft(draft, published=set(self.versions()))

    def close(self) -> None:
        """Remove what the trainer keeps for deltas; idempotent."""
        if self._deltas is not None:
            self._deltas.close()

    def versions(self) -> list[int]:
        """Return the published versions, the newest first."""
        found = (re.fullmatch(r"version-(\d+)", path.name) for path in self.root.glob("version-*"))
        return sorted((int(match[1]) for match in found if match), reverse=True)

    @contextmanager
    def reading(self, version: int) -> Iterator[Path]:
        """Yield the folder of a version, which the trainer does not remove meanwhile; blocks while it is verified.

        Raises `WeightsError` if a file is missing or not as it was written.
        """
        with self.opened(version) as directory:
            try:
                _verify(directory, version)
            except OSError as error:
                raise _unreadable(version, self.root, error) from error
            yield directory

    @contextmanager
    def opened(self, version: int) -> Iterator[Path]:
        """Yield the folder of a version, which the trainer does not remove meanwhile, without verifying it.

        Raises `WeightsError` if it is not there.
        """
        directory = self.root / f"version-{version}"
        with ExitStack() as held:
            try:
                manifest = held.enter_context((directory / MANIFEST).open("rb"))
                fcntl.flock(manifest, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError as error:
                message = f"version {version} of the weights is just being removed from {self.root}"
                raise WeightsError(message) from error
            except OSError as error:
                raise _unreadable(version, self.root, error) from error
            yield directory

    def _clean(self) -> None:
        """Restore versions that killed trainers were replacing, and remove those that they were removing."""
        restore_replaced(self.root)
        for leftover in self.root.glob(".version-*.gone"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _prune(self) -> None:
        """Remove old versions; one that cannot be removed now goes with a later one."""
        versions = self.versions()
        try:
            needed = self._built_on(versions[: self._keep])
        except OSError:  # nothing may go of which it is not known whether a newer version builds on it
            return
        for version in versions[self._keep :]:
            if version in needed:
                continue
            directory = self.root / f"version-{version}"
            with suppress(OSError), (directory / MANIFEST).open("r+b") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Under another name first, so that nobody begins to read a version that is half removed.
                gone = directory.replace(directory.with_name(f".{directory.name}.gone"))
                shutil.rmtree(gone, ignore_errors=True)

    def _built_on(self, versions: list[int]) -> set[int]:
        """Return all versions that some versions build on."""
        found: set[int] = set()
        for version in versions:
            base = self._base_of(version)
            while base is not None and base not in found:
                found.add(base)
                base = self._base_of(base)
        return found

    def _base_of(self, version: int) -> int | None:
        """Return the version that a delta applies to; None for a whole version, and for a damaged one."""
        try:
            base = read_base(self.root / f"version-{version}")
        except ValueError:
            return None
        return None if base is None else base.version


def _unreadable(version: int, root: Path, error: OSError) -> WeightsError:
    if isinstance(error, FileNotFoundError):
        return WeightsError(f"version {version} of the weights is not in {root}: {error.filename} is missing")
    return WeightsError(f"version {version} of the weights cannot be read from {root}: {error}")


def _verify(directory: Path, version: int) -> None:
    try:
        # The manifest alone first: reading the weights may take minutes.
        found = peek_manifest(directory)
        if found is None or found.version != version:
            raise WeightsError(f"{directory} is damaged: its manifest is not that of version {version}")
        read_manifest(directory)
    except ValueError as error:
        raise WeightsError(f"version {version} of the weights is refused: {error}") from error
