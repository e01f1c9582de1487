"""Checkpoints: a model directory that `from_pretrained` reads, plus what the optimizer needs to go on exactly.

A checkpoint appears under its name only when it is complete.
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

from agentrl_core.errors import RunError
from agentrl_core.invocation import command_line
from agentrl_core.models.loading import advice, load_causal_lm
from agentrl_core.models.quiet import no_progress_bars

OPTIMIZER = "optimizer.pt"
STATE = "trainer_state.json"

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

    Raises `RunError` where the disk refuses.
    """
    from safetensors import SafetensorError

    draft = directory.with_name(f".{directory.name}.draft")
    former = directory.with_name(f".{directory.name}.former")
    try:
        for leftover in (draft, former):
            shutil.rmtree(leftover, ignore_errors=True)
        draft.mkdir(parents=True)
        with no_progress_bars():
            model.save_pretrained(draft)
        companions.write(draft)
        torch.save(optimizer.state_dict(), draft / OPTIMIZER)
        (draft / STATE).write_text(json.dumps(state, indent=2), encoding="utf-8")
        if directory.exists():
            directory.replace(former)
        draft.replace(directory)
        shutil.rmtree(former, ignore_errors=True)
    except (OSError, RuntimeError, SafetensorError) as error:  # torch and safetensors wrap what the disk says
        shutil.rmtree(draft, ignore_errors=True)
        raise RunError(
            f"cannot write the checkpoint {directory}: {error}; make room or set output_dir elsewhere, then go on "
            f"from the last checkpoint with `{command_line('runs', 'resume')}`"
        ) from error


def restore_checkpoint(directory: Path, *, model: Any, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put weights and optimizer state back bit by bit; returns the state that was saved beside them.

    Raises `RunError`, naming the file, where the directory is not a complete checkpoint.
    """
    path = directory / STATE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(state, dict) or not all(isinstance(state.get(key), int) for key in ("step", "version")):
            raise ValueError("no object with the numbers step and version")  # noqa: TRY301  # one message for all
        path = directory / OPTIMIZER
        optimizer_state = torch.load(path, weights_only=True, map_location="cpu")
        saved = load_causal_lm(directory, next(model.parameters()).dtype, error=RunError)
        optimizer.load_state_dict(optimizer_state)
    except (OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise RunError(
            f"{directory} is not a complete checkpoint: cannot read {path}: {error}; expected weights, {OPTIMIZER} and "
            f"{STATE} there{advice(directory)}"
        ) from error
    model.load_state_dict(saved.state_dict())
    return state


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
