"""Checkpoints: a model directory that `from_pretrained` reads, plus what the optimizer needs to go on exactly.

A checkpoint appears under its name only when it is complete and on the disk, and it is used only as it was written.
"""

from __future__ import annotations

import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import attrs
import torch

from agentrl_core.config.invocation import command_line
from agentrl_core.errors import RunError
from agentrl_core.models.loading import advice, load_causal_lm
from agentrl_core.models.quiet import no_progress_bars
from agentrl_core.stores.files import flush_entry, flush_to_disk, make_private, make_private_folder, private_opener
from agentrl_core.weights.finite import not_finite
from agentrl_core.weights.manifest import MANIFEST, read_manifest, write_manifest

OPTIMIZER = "optimizer.pt"
STATE = "trainer_state.json"
_MANIFEST_KEY = "manifest"
"""Stands in the state of checkpoints that have a manifest; those of earlier versions have neither."""

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
"""What belongs to a model directory beside config and weights, which the model writes itself."""


@attrs.frozen
class Companions:
    """Tokenizer and template files of a model directory, held in memory: the directory may go before the run does."""

    files: dict[str, bytes]

    @classmethod
    def read(cls, model_dir: Path) -> Companions:
        """Read what `_COMPANIONS` names."""
        paths = {path for pattern in _COMPANIONS for path in model_dir.glob(pattern) if path.is_file()}
        return cls({path.name: path.read_bytes() for path in sorted(paths)})

    def write(self, directory: Path) -> None:
        """Write them unchanged."""
        for name, content in self.files.items():
            (directory / name).write_bytes(content)


def save_checkpoint(
    directory: Path,
    *,
    model: Any,
    optimizer: torch.optim.Optimizer,
    companions: Companions,
    state: dict[str, Any],
) -> None:
    """Write everything beside `directory` first, then move it there; a checkpoint of that name is replaced.

    `state` holds at least the numbers `step` and `version`. A checkpoint under its name is whole, on the disk, and for
    its owner alone. Raises `RunError` where the disk refuses, and for weights that are not finite.
    """
    from safetensors import SafetensorError

    if broken := not_finite(model):
        raise RunError(
            f"the checkpoint {directory} is not written: {len(broken)} of the policy's weights hold NaN or infinite "
            f"numbers ({broken[0]} is the first). Go on from an earlier checkpoint with a lower trainer.lr"
        )
    draft = directory.with_name(f".{directory.name}.draft")
    former = directory.with_name(f".{directory.name}.former")
    try:
        for leftover in (draft, former, *directory.parent.glob(".step-*.draft")):  # of a process that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        make_private_folder(draft)
        with no_progress_bars():
            model.save_pretrained(draft)
        companions.write(draft)
        with open(draft / OPTIMIZER, "wb", opener=private_opener) as file:
            torch.save(optimizer.state_dict(), file)
        text = json.dumps(state | {_MANIFEST_KEY: MANIFEST}, indent=2)
        (draft / STATE).write_text(text, encoding="utf-8")
        write_manifest(draft, step=state["step"], version=state["version"])
        make_private(draft)
        flush_to_disk(draft)
        if directory.exists():
            directory.replace(former)
        draft.replace(directory)
        flush_entry(directory.parent)
        shutil.rmtree(former, ignore_errors=True)
    except (OSError, RuntimeError, SafetensorError) as error:  # torch and safetensors wrap what the disk says
        cause = error.__context__ if isinstance(error.__context__, OSError) else error
        raise RunError(
            f"cannot write the checkpoint {directory}: {cause}; make room or set output_dir elsewhere, then go on "
            f"from the last checkpoint with `{command_line('runs', 'resume')}`"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # left where something failed, or Ctrl-C came


def read_state(directory: Path) -> dict[str, Any]:
    """Return what was saved beside the weights: `step`, `version` and more.

    Raises `RunError` where it is not that of the folder, or a file of the checkpoint is not as it was written.
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
    named = re.fullmatch(r"step-(\d+)", directory.name)
    for step in (manifest and manifest.step, named and int(named[1])):
        if step is not None and step != state["step"]:
            raise RunError(
                f"{path} says step {state['step']}, but the checkpoint is that of step {step}; put back the file that "
                f"belongs there{advice(directory)}"
            )
    return state


def restore_checkpoint(directory: Path, *, model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put weights and optimizer state back bit by bit; returns the state that was saved beside them.

    Raises `RunError`, naming the file, where the directory is not a complete checkpoint as it was written.
    """
    state = read_state(directory)
    path = directory / OPTIMIZER
    try:
        optimizer_state = torch.load(path, weights_only=True, map_location="cpu")
        saved = load_causal_lm(directory, next(model.parameters()).dtype, error=RunError)
        optimizer.load_state_dict(optimizer_state)
    except (OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise _incomplete(directory, path, error) from error
    model.load_state_dict(saved.state_dict())
    return state


def _incomplete(directory: Path, path: Path, why: object) -> RunError:
    return RunError(
        f"{directory} is not a complete checkpoint: cannot read {path}: {why}; expected weights, {OPTIMIZER} and "
        f"{STATE} there{advice(directory)}"
    )


def prune(directory: Path, *, keep: int, saved: int) -> None:
    """Remove all but the newest `keep` folders named `step-N`, N up to `saved`, in `directory`.

    Nothing else there is touched: not a folder of a later step, nor the one just saved.
    """
    steps = sorted(
        (int(match[1]), path)
        for path in directory.glob("step-*")
        if path.is_dir() and (match := re.fullmatch(r"step-(\d+)", path.name)) and int(match[1]) <= saved
    )
    for _, path in steps[: max(len(steps) - keep, 0)]:
        shutil.rmtree(path)
