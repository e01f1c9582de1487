"""Fork a run: a new run folder whose policy is a checkpoint of another run, with that run's config and overrides."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from agentrl_core import config as configs
from agentrl_core.config.invocation import command_line
from agentrl_core.errors import ConfigError, RunError, UsageError
from agentrl_core.run.checks import check_config
from agentrl_core.run.directory import RunDirectory
from agentrl_core.run.kept_config import with_overrides
from agentrl_core.stores.files import flush_to_disk, make_private, make_private_folder
from agentrl_core.weights.manifest import MANIFEST, Manifest, read_manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

_NOT_THE_POLICY = ("optimizer.pt", "master_weights.pt", "trainer_state.json", MANIFEST)
"""Files of a checkpoint that a new run does not begin with."""


def fork(source: Path, *, step: int | None = None, name: str = "", overrides: Sequence[str] = ()) -> RunDirectory:
    """Create the folder of a new run, beside that of `source`, and return it; `run.resume` then trains it.

    Its policy is the checkpoint of `step` (None: the newest one), every file of which is verified. Optimizer, order of
    tasks and reference policy begin anew; there is no warm start. The weights are hard links where the file system has
    them, so the fork does not depend on the other run's checkpoints. Raises `UsageError` if there is no such
    checkpoint or the config cannot work, and `RunError` if the folder cannot be written.
    """
    parent = RunDirectory.open(source)
    if parent.command != "run":
        raise UsageError(
            f"run '{parent.name}' is of `agentrl {parent.command}`, which has no fork; train its checkpoint with "
            f"`{command_line('run', 'CONFIG')} model.path={parent.checkpoints}/step-N`"
        )
    number, checkpoint = _chosen(parent, step)
    manifest = _verified(checkpoint)
    kept, base_dir = parent.read_snapshot()
    model = {"path": str(checkpoint), "dtype": (kept.get("model") or {}).get("dtype", "float32")}
    began = {**kept, "name": name, "model": model, "warm_start": None, "output_dir": str(parent.path.parent)}
    config = with_overrides(began, base_dir, overrides)
    if config.model.path != str(checkpoint):
        raise UsageError("a fork has the model of the other run's checkpoint: leave the overrides of `model` out")
    if problems := check_config(configs.LoadedConfig(config, base_dir))[0]:
        raise ConfigError("\n".join(problems))
    directory = RunDirectory.create(Path(config.output_dir), config.name)
    _link_policy(checkpoint, directory.model)
    config = attrs.evolve(config, name=directory.name, model=attrs.evolve(config.model, path=str(directory.model)))
    origin = f"run {parent.name}, step {number}, digest {manifest.digest}"
    directory.write_snapshot(configs.dump_without_passwords(config), base_dir, origin=origin)
    return directory


def _chosen(parent: RunDirectory, step: int | None) -> tuple[int, Path]:
    """Return step and folder of the checkpoint to begin from."""
    found = dict(parent.all_checkpoints())
    if not found:
        raise UsageError(f"run '{parent.name}' has no checkpoint in {parent.checkpoints} to begin from")
    number = max(found) if step is None else step
    if number not in found:
        steps = ", ".join(map(str, sorted(found)))
        raise UsageError(f"run '{parent.name}' has no checkpoint of step {number}; it has those of {steps}")
    return number, found[number]


def _verified(checkpoint: Path) -> Manifest:
    try:
        manifest = read_manifest(checkpoint)
    except (OSError, ValueError) as damage:
        raise RunError(f"{checkpoint} is not a complete checkpoint: {damage}; choose another --step") from damage
    if manifest is None:
        raise RunError(f"{checkpoint} has no {MANIFEST} that tells whether it is complete; choose another --step")
    return manifest


def _link_policy(checkpoint: Path, model: Path) -> None:
    """Give the new run the weights, config and tokenizer of a checkpoint, under the final name once they are complete.

    Nothing writes into the files of a checkpoint, so both runs may share them.
    """
    draft = model.with_name(f".{model.name}.draft")
    try:
        make_private_folder(draft)
        for path in checkpoint.iterdir():
            if path.is_file() and path.name not in _NOT_THE_POLICY:
                try:
                    os.link(path, draft / path.name)
                except OSError:  # another file system, or one without hard links
                    shutil.copy2(path, draft / path.name)
        make_private(draft)
        flush_to_disk(draft)
        draft.replace(model)
    except OSError as error:
        raise RunError(f"cannot write {model}: {error}; free disk space there, then remove {model.parent}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
