"""Gradient checkpointing: each layer's inside is computed again in the backward pass instead of being kept.

Transformers' own layers do it, but only in training mode, which would turn dropout on. So a layer is told that it is
in training just long enough to hand over what it would compute, and is itself again while it computes it.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch import nn


def recomputable_layers(model: nn.Module) -> tuple[nn.Module, ...]:
    """The layers whose inside need not be kept; none inside another."""
    found: list[nn.Module] = []
    for child in model.children():
        found.extend([child] if isinstance(child, GradientCheckpointingLayer) else recomputable_layers(child))
    return tuple(found)


@contextmanager
def recomputing(layers: Sequence[nn.Module], again: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Keep of each layer but its input, while this lasts; `again` makes what it is computed again in."""
    modes = [layer.training for layer in layers]
    for layer in layers:
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
