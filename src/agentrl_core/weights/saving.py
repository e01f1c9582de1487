"""Write the weights of a live module as a model directory with a manifest, for an engine in another process."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agentrl_core.errors import EngineError
from agentrl_core.weights.finite import not_finite
from agentrl_core.weights.manifest import write_manifest
from agentrl_core.weights.proof import canary_of, write_canary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch


def check_module(module: Any, version: int) -> None:
    """Raise `EngineError` unless `module` is a transformers model whose weights are all finite."""
    if getattr(module, "save_pretrained", None) is None:
        raise EngineError(f"weights of {type(module).__name__}: expected a transformers model, with save_pretrained")
    if broken := not_finite(module):
        raise EngineError(
            f"version {version} is not published: {len(broken)} of the policy's weights contain NaN or infinite "
            f"numbers (the first is {broken[0]}); resume from an earlier checkpoint with a lower trainer.lr"
        )


def save_module(
    module: Any,
    directory: Path,
    version: int,
    *,
    companions: Any = None,
    dtype: str | None = None,
    with_canary: bool = False,
) -> None:
    """Write a model directory and its manifest; `companions.write(directory)`, if given, adds files before that.

    `dtype` is the type that the weights are written in, by its name in torch; None: the module's own. `with_canary`
    adds the file by which a process without a learner proves that its engine has these weights.
    """
    from agentrl_core.models.progress_bars import no_progress_bars

    # The state is passed on only where it differs: without it, transformers also handles modules that are sharded.
    state = {} if dtype is None else {"state_dict": state_in(module, dtype)}
    with no_progress_bars():
        module.save_pretrained(directory, **state)
    if dtype is not None:
        _declare(directory / "config.json", dtype)
    if companions is not None:
        companions.write(directory)
    if with_canary and (canary := canary_of(module, version)) is not None:
        write_canary(directory, canary)
    write_manifest(directory, version=version)


def state_in(module: Any, dtype: str) -> dict[str, torch.Tensor]:
    """Return a module's state with its floating-point weights in another type; tied weights stay tied.

    Weights that transformers keeps in float32 whatever the model's type, such as a router's bias, stay as they are.
    """
    import torch

    target: torch.dtype = getattr(torch, dtype)
    kept = {*(getattr(module, "_keep_in_fp32_modules", None) or ())} | {
        *(getattr(module, "_keep_in_fp32_modules_strict", None) or ())
    }
    cast: dict[tuple[int, torch.Size, tuple[int, ...]], torch.Tensor] = {}
    state: dict[str, torch.Tensor] = {}
    for name, tensor in module.state_dict().items():
        if not tensor.is_floating_point() or tensor.dtype == target or any(part in name for part in kept):
            state[name] = tensor
            continue
        # Tied weights are two names of one memory; transformers leaves the second out if they still are after the cast.
        key = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if key not in cast:
            cast[key] = tensor.to(target)
        state[name] = cast[key]
    return state


def _declare(path: Path, dtype: str) -> None:
    """Write the type of the weights into a model's config, from which servers take theirs when they start."""
    if path.is_file():
        content = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(_with_dtype(content, dtype), indent=2) + "\n", encoding="utf-8")


def _with_dtype(content: Any, dtype: str) -> Any:
    if not isinstance(content, dict):
        return content
    return {key: dtype if key == "dtype" and value else _with_dtype(value, dtype) for key, value in content.items()}


def folder_bytes(directory: Path) -> int:
    """Return the size of all files of a folder; 0 if it is not there."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


@contextmanager
def disk_errors(version: int, where: Path, option: str) -> Iterator[None]:
    """Turn the errors of a disk into `EngineError`, which names the folder and the option that sets it."""
    from safetensors import SafetensorError

    try:
        yield
    # torch and safetensors raise their own errors for a full disk.
    except (OSError, RuntimeError, SafetensorError) as error:
        raise EngineError(
            f"cannot write the weights of version {version} to {where}: {error}; make room on that disk, or set "
            f"{option} to another place"
        ) from error
