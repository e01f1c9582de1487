"""Load the model that an engine serves, and check that replacement weights belong to the same model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_core.api.weights import DirectoryWeights, ModuleWeights
from agentrl_core.errors import EngineError
from agentrl_core.models.loading import load_causal_lm

if TYPE_CHECKING:
    import torch
    from torch import nn

    from agentrl_core.api.weights import WeightSource


def load_model(path: Path, dtype: torch.dtype) -> nn.Module:
    """Load a causal language model from a local directory for inference; `EngineError` if anything is missing."""
    if not (path / "config.json").is_file():
        raise EngineError(
            f"{path}: no model directory (config.json is missing); expected a Hugging Face model directory"
        )
    model: nn.Module = load_causal_lm(path, dtype, error=EngineError)
    return model.eval().requires_grad_(requires_grad=False)


def source_module(source: WeightSource, dtype: torch.dtype) -> nn.Module:
    """Return the module that holds a source's weights; a directory is read, which blocks."""
    if isinstance(source, ModuleWeights):
        return source.module
    if isinstance(source, DirectoryWeights):
        return load_model(source.path, dtype)
    raise EngineError(f"expected weights as ModuleWeights or DirectoryWeights, got {type(source).__name__}")


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter by name."""
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def check_shapes(expected: dict[str, tuple[int, ...]], model: nn.Module) -> None:
    """Refuse weights of another model before any weight is overwritten; `EngineError` names the first difference."""
    found = shapes(model)
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise EngineError(
                f"the new weights belong to another model: {name} is {found.get(name, 'missing')}, "
                f"expected {expected.get(name, 'none')}"
            )
