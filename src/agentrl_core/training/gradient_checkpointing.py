"""Gradient checkpointing without dropout: recompute each layer's activations in the backward pass.

Transformers' layers support this, but only in training mode, which turns dropout on. So a layer is put into training
mode only until it passes its forward to the checkpoint function, and runs that forward in evaluation mode.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import modeling_layers

from agentrl_core.training.private_names import changed, looked_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager


def recomputable_layers(model: nn.Module) -> tuple[nn.Module, ...]:
    """Return the outermost layers that support gradient checkpointing.

    Raises `ConfigError` if `recomputing` has no effect on the layers of the installed transformers.
    """
    kind = looked_up("transformers", modeling_layers, "GradientCheckpointingLayer")
    # Attributes that transformers no longer looks at would be ignored, and memory would run out much later.
    if not _takes_effect(kind):
        raise changed("transformers", "does not recompute layers by gradient_checkpointing and its function")
    return _outermost(model, kind)


def _outermost(model: nn.Module, kind: type[nn.Module]) -> tuple[nn.Module, ...]:
    found: list[nn.Module] = []
    for child in model.children():
        found.extend([child] if isinstance(child, kind) else _outermost(child, kind))
    return tuple(found)


def _takes_effect(kind: type[nn.Module]) -> bool:
    """Return whether a layer of the class is recomputed inside `recomputing`."""

    class Probe(kind):  # type: ignore[misc, valid-type]  # a class that is known at run time only
        def forward(self, states: Any) -> Any:
            return states

    recomputed: list[bool] = []

    def again() -> AbstractContextManager[None]:
        recomputed.append(True)
        return nullcontext()

    probe = Probe()
    with recomputing((probe,), again):
        probe(torch.zeros(1))
    return bool(recomputed)


@contextmanager
def recomputing(layers: Sequence[nn.Module], again: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Make forward passes inside the context keep only the input of each layer.

    `again` makes the context in which the backward pass runs a layer's forward again.
    """
    modes = [layer.training for layer in layers]
    for layer in layers:
        # The two attributes that transformers' GradientCheckpointingLayer looks at.
        attributes = {"gradient_checkpointing": True, "_gradient_checkpointing_func": partial(_run, layer, again)}
        vars(layer).update(attributes, training=True)
    try:
        yield
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            del layer.gradient_checkpointing, layer._gradient_checkpointing_func  # noqa: SLF001  # set above
            layer.training = mode


def _run(
    layer: nn.Module, again: Callable[[], AbstractContextManager[Any]], forward: Callable[..., Any], *inputs: Any
) -> Any:
    # Evaluation mode, so that dropout stays off inside the layer.
    def quiet(*inputs: Any) -> Any:
        mode, layer.training = layer.training, False
        try:
            return forward(*inputs)
        finally:
            layer.training = mode

    return checkpoint(
        quiet,
        *inputs,
        use_reentrant=False,
        preserve_rng_state=False,  # nothing is drawn
        context_fn=lambda: (nullcontext(), again()),
    )
