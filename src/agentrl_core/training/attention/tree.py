"""Run a whole token trie in one forward pass, with a tree kernel (`rect`, `flex`, `dense`) as the model's attention.

Transformers looks up attention functions by name. This module registers `agentrl_tree`; the forward passes the trie's
layout as the keyword argument `tree`, which the model hands down to its attention layers. No model is patched.
T tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import attrs
import torch
from torch.nn.functional import pad
from transformers import AttentionInterface

from agentrl_core.errors import TrainingError
from agentrl_core.training.attention.dense import dense
from agentrl_core.training.attention.flex import flex, padded
from agentrl_core.training.attention.rect import rect

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core.batching.packing import MicroBatch
    from agentrl_core.training.attention.choice import Attention
    from agentrl_core.training.policy import Network

IMPLEMENTATION = "agentrl_tree"
"""Name of the attention function in transformers' registry."""

_CHANGES_SCORES = ("softcap", "s_aux", "position_bias")
"""Arguments by which a model changes its attention scores. Our kernels do not support them, so they are refused."""


class Kernel(Protocol):
    """Function that computes attention along the paths of a trie."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Compute attention: query [1, Hq, T, D], key and value [1, Hk, T, D] -> [1, Hq, T, D]."""
        ...


@attrs.define(eq=False)
class Tree:
    """Layout of one micro-batch for the attention layers."""

    kernel: Kernel
    depth: int
    """Tokens of the longest sequence."""
    window: int | None = None
    """Smallest sliding window that a layer asked for, in tokens; set during the forward pass."""


@attrs.define(eq=False)
class TreeAttention:
    """Attention method that runs every token of the trie in one forward pass."""

    name: str
    """Kernel: `rect`, `flex` or `dense`."""
    longer: Attention
    """Method for micro-batches with a sequence longer than the sliding window."""
    window: int | None = None
    """Smallest sliding window of the model's layers in tokens; None while none is known."""

    merges = True

    def prepare(self, batch: MicroBatch) -> Kernel:
        """Return the kernel for a micro-batch."""
        nodes = batch.trie.nodes
        if self.name == "flex":
            return flex(nodes, batch.ids.device)
        if self.name == "rect":
            return rect(nodes)
        return lambda query, key, value, scale: dense(query, key, value, nodes, scale)

    def padded(self, tokens: int) -> int:
        """Return the number of tokens after the kernel's padding."""
        return padded(tokens) if self.name == "flex" else tokens

    def logprobs(self, network: Network, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies of the batch's predictions. [U] each."""
        # The tree kernels have no window. As long as every sequence fits into it, a window changes nothing.
        if self.window is not None and batch.trie.depth > self.window:
            return self.longer.logprobs(network, batch)
        tree = Tree(self.prepare(batch), batch.trie.depth)
        wanted = batch.predictions
        padding = (0, self.padded(batch.tokens) - batch.tokens)
        with network.attention(IMPLEMENTATION):
            states = network.states(
                pad(batch.ids, padding)[None],
                torch.zeros_like(wanted.place),
                wanted.place,
                position_ids=pad(batch.positions, padding)[None],
                tree=tree,
            )
        if tree.window is not None:
            self.window = min(tree.window, self.window or tree.window)
        return network.score(states, wanted)


def _tree_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    *,
    tree: Tree,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute attention over the tree, with the signature that transformers expects of an attention function.

    Raises `TrainingError` for arguments that the kernels do not support.
    """
    unknown = [name for name in _CHANGES_SCORES if others.get(name) is not None]
    unknown += ["a mask"] * (attention_mask is not None) + ["dropout"] * (dropout > 0)
    if unknown:
        raise TrainingError(
            f"{type(module).__name__} uses {', '.join(unknown)} in its attention, which attention over a tree does not "
            "support"
        )
    if sliding_window is not None:
        tree.window = min(sliding_window, tree.window or sliding_window)
        if tree.depth > sliding_window:
            raise TrainingError(
                f"{type(module).__name__} has a sliding window of {sliding_window} tokens, but a sequence has "
                f"{tree.depth}; attention over a tree supports no window"
            )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return tree.kernel(query, key, value, scale).transpose(1, 2).contiguous(), None


AttentionInterface.register(IMPLEMENTATION, _tree_attention)
