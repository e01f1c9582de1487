"""Check whether a configured path holds a model, and tell the user how to download one if it does not."""

from __future__ import annotations

import re
from pathlib import Path

from agentrl_core.config.invocation import hf_download, near

_CONFIG = "config.json"
_OWNERS = {"Qwen": "Qwen", "SmolLM": "HuggingFaceTB", "Llama": "meta-llama", "gemma": "google"}
_LOCAL = ("checkpoints", "model", "models", "runs")
"""Names of folders in which people keep models. `models/X` is a local path, while `Qwen/Qwen3-0.6B` may be a model of
the Hub."""


def no_model_in(written: str, base_dir: Path) -> str | None:
    """Return the problem with a model's path in a config, and its fix; None if the path holds a model.

    Relative paths start from `base_dir`.
    """
    folder = Path(near(base_dir / Path(written).expanduser()))
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
    """Return the probable owner of a model on the Hub by the model's name; else the placeholder OWNER."""
    return next((owner for family, owner in _OWNERS.items() if model.startswith(family)), "OWNER")


def _inside(folder: Path) -> str:
    """Return a hint that names the newest model in a run's folder or its checkpoints; empty if there is none."""
    found = [*folder.glob(f"step-*/{_CONFIG}"), *folder.glob(f"checkpoints/step-*/{_CONFIG}")]
    steps = {int(match[1]): path.parent for path in found if (match := re.fullmatch(r"step-(\d+)", path.parent.name))}
    return f" (did you mean {near(steps[max(steps)])}?)" if steps else ""
