"""Model cache that several branches of a trie continue from, with or without gradients; used by `dfs`."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from transformers import cache_utils as caches

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from agentrl_core.training.policy import Network

_CONTINUED = frozenset(
    {
        "DynamicLayer",
        "DynamicSlidingWindowLayer",
        "LinearAttentionLayer",
        "LinearAttentionAndFullAttentionLayer",
        "LinearAttentionAndSlidingWindowAttentionLayer",
        "DummyLayer",
    }
)
"""Cache layers of transformers that `dfs` supports. Others are refused, because the short trial in `choice` cannot show
whether they are right beyond their first few tokens."""


def unknown_states(network: Network) -> str | None:
    """Return the reason why the model's cache is not supported, with the names of its layers; None if it is."""
    # By name, so that a version of transformers without one of them still trains the other models.
    continued = {getattr(caches, name, None) for name in _CONTINUED}
    kinds = {type(layer) for layer in Past(config=network.model.config).layers} - continued
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    return f"it keeps its past in {names}" if kinds else None


class Past(caches.DynamicCache):
    """Cache whose updates never write into tensors that it took from its parent.

    Sibling branches and the backward pass still read those tensors.
    """

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **others: Any) -> Tensor:
        """Store the newest inputs of a convolution."""
        self._renew("conv_states", layer_idx, state_idx)
        updated: Tensor = super().update_conv_state(conv_states, layer_idx, state_idx, **others)
        return updated

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **others: Any
    ) -> Tensor:
        """Store a recurrent state after its last token."""
        self._renew("recurrent_states", layer_idx, state_idx)
        updated: Tensor = super().update_recurrent_state(recurrent_states, layer_idx, state_idx, **others)
        return updated

    def _renew(self, name: str, layer_idx: int, state_idx: int) -> None:
        # Transformers copies a new state into the tensor of the old one. A clone keeps the parent's tensor unchanged.
        held = getattr(self.layers[layer_idx], name)
        if held[state_idx] is not None:
            held[state_idx] = held[state_idx].clone()

    def passed_on(self, change: Callable[[Tensor], Tensor]) -> Past:
        """Return a copy for a child, with `change` applied to each floating-point state."""
        child = copy.copy(self)
        child.layers = [_passed_on(layer, change) for layer in self.layers]
        return child

    @property
    def states(self) -> list[Tensor]:
        """All floating-point states, in the order in which `passed_on` visits them."""
        found: list[Tensor] = []

        def collect(state: Tensor) -> Tensor:
            found.append(state)
            return state

        self.passed_on(collect)
        return found


def _passed_on(layer: Any, change: Callable[[Tensor], Tensor]) -> Any:
    def renew(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: renew(item) for key, item in value.items()}
        if not isinstance(value, torch.Tensor):
            return value
        return change(value) if value.is_floating_point() else value.clone()

    child = copy.copy(layer)
    vars(child).update({name: renew(value) for name, value in vars(layer).items()})
    return child
