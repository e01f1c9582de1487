"""Write, restore and prune checkpoints: a model directory for `from_pretrained`, plus optimizer and trainer state.

With bf16 weights the fp32 masters are a file of their own, so that others read the directory as a usual bf16 model.
A checkpoint gets its final name only when it is complete and flushed to disk. It is read only if every file is as it
was written (`manifest.json`). A restored run continues bit by bit.
"""

from __future__ import annotations

import json
import pickle
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch

from agentrl_core.config.invocation import command_line
from agentrl_core.errors import RunError
from agentrl_core.models.loading import advice, load_causal_lm
from agentrl_core.models.progress_bars import no_progress_bars
from agentrl_core.stores.files import (
    flush_to_disk,
    make_private,
    make_private_folder,
    private_opener,
    replace_folder,
    restore_replaced,
)
from agentrl_core.weights.finite import not_finite
from agentrl_core.weights.manifest import MANIFEST, read_manifest, write_manifest

if TYPE_CHECKING:
    from agentrl_core.stores.files import Writer
    from agentrl_core.training.master_weights import MasterWeights

OPTIMIZER = "optimizer.pt"
MASTERS = "master_weights.pt"
"""Masters of narrow weights. Not a safetensors file: a server would read it as a part of the model."""
STATE = "trainer_state.json"
_MANIFEST_KEY = "manifest"
"""Key in the trainer state of checkpoints that have a manifest. Checkpoints of earlier versions have neither, so a
missing manifest is an error only where this key is present."""

_COMPANIONS = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "chat_template*",
    "*.model",
    "preprocessor_config.json",
)
"""Files of a model directory to copy beside config and weights, which `save_pretrained` of the model writes itself."""


@attrs.frozen
class Companions:
    """Tokenizer and template files of a model directory, in memory because the directory may vanish during the run."""

    files: dict[str, bytes]
    """File name -> content."""

    @classmethod
    def read(cls, model_dir: Path) -> Companions:
        """Read the files that match `_COMPANIONS`."""
        paths = {path for pattern in _COMPANIONS for path in model_dir.glob(pattern) if path.is_file()}
        return cls({path.name: path.read_bytes() for path in sorted(paths)})

    def write(self, directory: Path) -> None:
        """Write the files unchanged into `directory`."""
        for name, content in self.files.items():
            (directory / name).write_bytes(content)


def save_checkpoint(
    directory: Path,
    *,
    model: Any,
    masters: MasterWeights,
    optimizer: torch.optim.Optimizer,
    companions: Companions,
    state: dict[str, Any],
    writer: Writer,
) -> None:
    """Write a checkpoint beside `directory`, then rename it; an existing checkpoint of that name is replaced.

    `state` contains at least the numbers `step` and `version`. Under its final name a checkpoint is complete, flushed
    to disk, and readable by its owner only. Raises `RunError` if the disk fails or a weight is not finite.
    """
    from safetensors import SafetensorError

    if broken := not_finite(model):
        raise RunError(
            f"the checkpoint {directory} is not written: {len(broken)} of the policy's weights contain NaN or infinite "
            f"numbers (the first is {broken[0]}). Resume from an earlier checkpoint with a lower trainer.lr"
        )
    draft = writer.draft(directory)
    try:
        restore_replaced(directory.parent)
        writer.remove_drafts(directory)
        shutil.rmtree(draft, ignore_errors=True)
        make_private_folder(draft)
        with no_progress_bars():
            model.save_pretrained(draft)
        companions.write(draft)
        _write(draft / OPTIMIZER, optimizer.state_dict())
        if masters.copies:
            _write(draft / MASTERS, {name: master.detach() for name, master in masters.copies.items()})
        text = json.dumps(state | {_MANIFEST_KEY: MANIFEST}, indent=2)
        (draft / STATE).write_text(text, encoding="utf-8")
        write_manifest(draft, step=state["step"], version=state["version"])
        make_private(draft)
        # Flush before the rename: after a power failure the name must not stand for files without content.
        flush_to_disk(draft)
        writer.check()
        replace_folder(draft, directory)
    # torch and safetensors raise their own errors for a full disk.
    except (OSError, RuntimeError, SafetensorError) as error:
        cause = error.__context__ if isinstance(error.__context__, OSError) else error
        raise RunError(
            f"cannot write the checkpoint {directory}: {cause}; make room on the disk or set output_dir to another "
            f"place, then continue from the last checkpoint with `{command_line('runs', 'resume')}`"
        ) from error
    finally:
        # After a failure or Ctrl-C the draft is still there.
        shutil.rmtree(draft, ignore_errors=True)


def read_state(directory: Path) -> dict[str, Any]:
    """Return the trainer state of a checkpoint: `step`, `version` and more.

    Raises `RunError` if the state belongs to another step than the folder, or a file is not as it was written.
    """
    path = directory / STATE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(state, dict) or not all(type(state.get(key)) is int for key in ("step", "version")):
            raise ValueError("no object with the numbers step and version")  # noqa: TRY301  # one message for all
    except (OSError, ValueError) as error:
        raise _incomplete(directory, path, error) from error
    try:
        manifest = read_manifest(directory)
    except (OSError, ValueError) as damage:
        raise RunError(f"{directory} is not a complete checkpoint: {damage}{advice(directory)}") from damage
    if manifest is None and _MANIFEST_KEY in state:
        raise _incomplete(directory, directory / MANIFEST, "it is missing")
    # Manifest and folder name record the step, too; a state file of another checkpoint disagrees with them.
    named = re.fullmatch(r"step-(\d+)", directory.name)
    for step in (manifest and manifest.step, named and int(named[1])):
        if step is not None and step != state["step"]:
            raise RunError(
                f"{path} says step {state['step']}, but the checkpoint is that of step {step}; restore the file that "
                f"belongs there{advice(directory)}"
            )
    return state


def _write(path: Path, content: object) -> None:
    with open(path, "wb", opener=private_opener) as file:
        torch.save(content, file)


def restore_checkpoint(
    directory: Path, *, model: Any, masters: MasterWeights, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Load weights, masters and optimizer state, bit by bit; return the trainer state.

    A run may go on in another type (`model.dtype`): fp32 weights become the masters of bf16 ones, and the other way
    round; nothing is rounded but the bf16 weights themselves. Raises `RunError` with the file's name if the checkpoint
    is incomplete or a file is not as it was written.
    """
    state = read_state(directory)
    path = directory / OPTIMIZER
    try:
        optimizer_state = torch.load(path, weights_only=True, map_location="cpu")
        wide = torch.promote_types(next(model.parameters()).dtype, torch.float32)
        saved = load_causal_lm(directory, wide, error=RunError)
        path = directory / MASTERS
        if path.is_file():
            _fill(saved, torch.load(path, weights_only=True, map_location="cpu"))
        weights = saved.state_dict()
        # Before the first change, so that a refused checkpoint leaves model and optimizer as they were.
        differing = _shapes(weights) ^ _shapes(model.state_dict())
        if differing:
            name, shape = min(differing)
            raise RunError(
                f"{directory} is the checkpoint of another model than that of this run: {name} with the shape {shape} "
                f"is in only one of them; set model.path to the model that the run began with"
            )
        path = directory / OPTIMIZER
        optimizer.load_state_dict(optimizer_state)
    except (OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise _incomplete(directory, path, error) from error
    model.load_state_dict(weights)
    masters.load(dict(saved.named_parameters()))
    return state


@torch.no_grad()
def _fill(model: Any, masters: Mapping[str, torch.Tensor]) -> None:
    """Set weights to their masters; raises `ValueError` if the file does not belong to the weights beside it."""
    # Parameter by parameter: a state dict would set a tied weight under one of its names only.
    for name, parameter in model.named_parameters():
        if name not in masters:
            continue
        if parameter.shape != masters[name].shape:
            raise ValueError(f"{name} has the shape {tuple(masters[name].shape)}, expected {tuple(parameter.shape)}")
        parameter.copy_(masters[name])
    if unknown := masters.keys() - dict(model.named_parameters()).keys():
        raise ValueError(f"the model has no weight {min(unknown)}")


def _shapes(weights: Mapping[str, torch.Tensor]) -> set[tuple[str, tuple[int, ...]]]:
    return {(name, tuple(value.shape)) for name, value in weights.items()}


def _incomplete(directory: Path, path: Path, why: object) -> RunError:
    return RunError(
        f"{directory} is not a complete checkpoint: cannot read {path}: {why}; expected weights, {OPTIMIZER} and "
        f"{STATE} there{advice(directory)}"
    )


def prune(directory: Path, *, keep: int, saved: int) -> None:
    """Remove all but the newest `keep` folders named `step-N` with N up to `saved` from `directory`.

    Everything else stays: folders of later steps, and the one just saved.
    """
    steps = sorted(
        (int(match[1]), path)
        for path in directory.glob("step-*")
        if path.is_dir() and (match := re.fullmatch(r"step-(\d+)", path.name)) and int(match[1]) <= saved
    )
    for _, path in steps[: max(len(steps) - keep, 0)]:
        shutil.rmtree(path)
