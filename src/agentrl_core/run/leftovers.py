"""Files of an ended run that nothing needs any more, neither to resume it nor for other runs (`agentrl runs gc`)."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from agentrl_core.weights.manifest import peek_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agentrl_core.api.stores import StepRow
    from agentrl_core.run.directory import RunDirectory


Kind: TypeAlias = Literal["checkpoint", "published weights", "rotated log", "half-written"]


@attrs.frozen(kw_only=True)
class Leftover:
    """A file or folder that may be removed."""

    path: Path
    kind: Kind
    size: int
    """Bytes on the disk that its removal frees: files that another run shares by a hard link count 0."""

    def remove(self) -> None:
        """Remove it; one that is gone already is no error."""
        if self.path.is_dir():
            shutil.rmtree(self.path, ignore_errors=False)
        else:
            self.path.unlink(missing_ok=True)


def leftovers(directory: RunDirectory, steps: Sequence[StepRow], *, keep: int) -> list[Leftover]:
    """Return what may be removed of an ended run, whose steps the store has.

    The newest `keep` checkpoints that a run can resume from stay, so do newer ones that it cannot, and those that
    configs of other runs beside it name. Published weights go, because a resumed run publishes them anew.
    """
    weights = directory.published
    found: list[tuple[Kind, Path]] = [
        *(("checkpoint", path) for path in _old_checkpoints(directory, steps, keep)),
        *(("published weights", path) for path in sorted(weights.glob("version-*"))),
        *(("rotated log", path) for path in sorted(directory.log("run").parent.glob("*.log.*"))),
        *(("half-written", path) for path in _drafts(directory.path, directory.checkpoints, weights)),
    ]
    return [Leftover(path=path, kind=kind, size=_freed(path)) for kind, path in found]


def _old_checkpoints(directory: RunDirectory, steps: Sequence[StepRow], keep: int) -> Iterator[Path]:
    live = {row.step: row.version for row in steps if not row.voided}
    named = _named_by_others(directory)
    usable = 0
    for step, path in directory.all_checkpoints():
        if usable >= keep and path.resolve() not in named:
            yield path
        usable += _is_usable(path, step, live)


def _is_usable(path: Path, step: int, live: Mapping[int, int]) -> bool:
    """Return whether a run can resume from a checkpoint, as far as that shows without reading its weights."""
    try:
        manifest = peek_manifest(path)
    except ValueError:
        return False
    return manifest is not None and manifest.step == step and (step == 0 or live.get(step) == manifest.version)


def _named_by_others(directory: RunDirectory) -> set[Path]:
    """Return the folders that the configs of the other runs beside this one name as model or reference."""
    named = set()
    for snapshot in directory.path.parent.glob("*/config.json"):
        if snapshot.parent == directory.path:
            continue
        try:
            kept: dict[str, Any] = json.loads(snapshot.read_text(encoding="utf-8"))
            config, base_dir = kept["config"], Path(kept["base_dir"])
            paths = ((config.get("model") or {}).get("path"), (config.get("loss") or {}).get("reference"))
            named |= {(base_dir / Path(path).expanduser()).resolve() for path in paths if isinstance(path, str)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # not the snapshot of a run
    return named


def _drafts(*folders: Path) -> Iterator[Path]:
    """Yield what killed processes left half-written in these folders."""
    for folder in folders:
        for path in sorted(folder.glob(".*")):
            if re.fullmatch(r"\..+\.(draft|gone)", path.name):
                yield path


def _freed(path: Path) -> int:
    files = [path] if path.is_file() else [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    found = [file.lstat() for file in files]
    return sum(entry.st_size for entry in found if entry.st_nlink == 1)
