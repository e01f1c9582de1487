"""Tells whether a folder holds a model, and how to get one where it does not."""

from __future__ import annotations

import re
from pathlib import Path

from agentrl_core.config.invocation import hf_download, near

_CONFIG = "config.json"
_OWNERS = {"Qwen": "Qwen", "SmolLM": "HuggingFaceTB", "Llama": "meta-llama", "gemma": "google"}
_LOCAL = ("checkpoints", "model", "models", "runs")
"""Folders that people keep models in; no owner of a repository, as `Qwen` in `Qwen/Qwen3-0.6B` is."""


def no_model_in(written: str, base_dir: Path) -> str | None:
    """Return what is wrong with the path of a model as it is written in a config, and what to do; None if nothing is.

    Relative paths start from `base_dir`.
    """
    folder = base_dir / Path(written).expanduser()
    if (folder / _CONFIG).is_file():
        return None
    if folder.is_dir():
        return f"{folder} is not a model directory: it has no {_CONFIG}{_inside(folder)}"
    if folder.exists():
        return f"{folder} is a file; expected the folder of a model, with {_CONFIG}, weights and tokenizer.json"
    owner, _, name = written.partition("/")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", written) and not owner.startswith(".") and owner not in _LOCAL:
        download = hf_download(written, base_dir / "models" / name)
        return (
            f"there is no folder {folder}, and a run downloads nothing. If '{written}' is a model of the Hugging Face "
            f"Hub, download it with `{download}`, and name the folder: models/{name}"
        )
    download = hf_download(f"{_owner_of(folder.name)}/{folder.name}", folder)
    return f"there is no folder {folder}; `{download}` downloads a model of the Hugging Face Hub into it"


def _owner_of(model: str) -> str:
    """Return who publishes models of such a name, as far as the name tells; else OWNER, to be replaced."""
    return next((owner for family, owner in _OWNERS.items() if model.startswith(family)), "OWNER")


def _inside(folder: Path) -> str:
    """Name the newest model below a run's folder, or below its checkpoints."""
    found = [*folder.glob(f"step-*/{_CONFIG}"), *folder.glob(f"checkpoints/step-*/{_CONFIG}")]
    steps = {int(match[1]): path.parent for path in found if (match := re.fullmatch(r"step-(\d+)", path.parent.name))}
    return f" (did you mean {near(steps[max(steps)])}?)" if steps else ""
