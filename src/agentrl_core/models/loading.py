"""Load a causal language model from a directory; any defect of the directory is an error."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_core.models.progress_bars import no_progress_bars
from agentrl_core.weights.finite import not_finite
from agentrl_core.weights.manifest import read_manifest

if TYPE_CHECKING:
    import torch

    from agentrl_core.errors import AgentRLError

_SHOWN = 6
"""Most weights that a message lists by name."""


def load_causal_lm(
    directory: Path, dtype: torch.dtype, *, device: torch.device | str = "cpu", error: type[AgentRLError]
) -> Any:
    """Load the model directory onto `device`; raises `error`, which names the broken file or the missing weights.

    transformers itself would fill missing weights with random numbers, and accept NaN as a weight. A directory with a
    manifest must be unchanged since it was written. Code in a model directory is never run. The weights are read into
    main memory first: transformers' own way onto a device needs the package accelerate.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        read_manifest(directory)
    except (OSError, ValueError) as damage:
        raise error(f"{damage}{advice(directory)}") from damage
    if wanted := code_of_its_own(directory):
        raise error(
            f"{directory / 'config.json'}: the model needs Python code of its own ({wanted}), which is not run; "
            "expected an architecture that is part of transformers"
        )
    library: Any = AutoModelForCausalLM  # its type does not know the report that output_loading_info returns
    try:
        with no_progress_bars():
            model, report = library.from_pretrained(
                directory,
                dtype=dtype,
                local_files_only=True,
                # Mismatched weights then appear in the report, and the message below names them all.
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                trust_remote_code=False,  # without it, transformers asks on the terminal
            )
    # Damaged files raise any of these, depending on the file and on the point at which reading fails.
    except (
        OSError,
        ValueError,
        RuntimeError,
        KeyError,
        TypeError,
        EOFError,
        pickle.UnpicklingError,
        SafetensorError,
    ) as cause:
        raise error(
            f"{broken_file(directory) or directory}: the model cannot be loaded: {cause}; expected config.json and "
            f"model.safetensors of an architecture that transformers knows{advice(directory)}"
        ) from cause
    missing = sorted(report["missing_keys"])
    misshapen = sorted(f"{name} is {tuple(found)} there" for name, found, _ in report["mismatched_keys"])
    if missing or misshapen:
        faults = [*([f"{_list(missing)} missing"] if missing else []), *([_list(misshapen)] if misshapen else [])]
        raise error(
            f"{directory}: the weights do not fill the model that config.json describes: {'; '.join(faults)}. "
            f"Use the config.json that belongs to the weights{advice(directory)}"
        )
    if broken := not_finite(model):
        raise error(
            f"{directory}: the weights hold NaN or infinite numbers ({_list(broken)}); expected finite ones"
            f"{advice(directory)}"
        )
    return model.to(device)


def code_of_its_own(directory: Path) -> str:
    """Return the class of a model directory's own code that loading needs; empty if transformers has the model."""
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # loading the model reports what is wrong with the file
        return ""
    classes, kind = (config.get("auto_map"), config.get("model_type")) if isinstance(config, dict) else (None, None)
    if not isinstance(classes, dict) or "AutoModelForCausalLM" not in classes:
        return ""
    known = isinstance(kind, str) and kind in CONFIG_MAPPING and CONFIG_MAPPING[kind] in MODEL_FOR_CAUSAL_LM_MAPPING
    return "" if known else str(classes["AutoModelForCausalLM"])


def broken_file(directory: Path) -> Path | None:
    """Return the first config or weights file that cannot be opened; None if all can."""
    from safetensors import SafetensorError, safe_open

    config = directory / "config.json"
    try:
        if config.is_file():
            json.loads(config.read_text(encoding="utf-8"))
    except ValueError:
        return config
    for path in sorted(directory.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except (OSError, SafetensorError):
            return path
    return None


def advice(directory: Path) -> str:
    """Return how to fix a broken checkpoint, as the end of a sentence; empty for other directories."""
    if not re.fullmatch(r"step-\d+", directory.name):
        return ""
    return f". If {directory} is this run's own checkpoint, remove that folder to go on from the one before"


def _list(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
