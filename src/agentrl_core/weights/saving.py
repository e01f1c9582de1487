"""Write the weights of a live module as a model directory with a manifest, for an engine in another process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agentrl_core.errors import EngineError
from agentrl_core.weights.finite import not_finite
from agentrl_core.weights.manifest import write_manifest
from agentrl_core.weights.proof import canary_of, write_canary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
    module: Any, directory: Path, version: int, *, companions: Any = None, with_canary: bool = False
) -> None:
    """Write a model directory and its manifest; `companions.write(directory)`, if given, adds files before that.

    `with_canary` adds the file by which a process without a learner proves that its engine has these weights.
    """
    from agentrl_core.models.progress_bars import no_progress_bars

    with no_progress_bars():
        module.save_pretrained(directory)
    if companions is not None:
        companions.write(directory)
    if with_canary and (canary := canary_of(module, version)) is not None:
        write_canary(directory, canary)
    write_manifest(directory, version=version)


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
