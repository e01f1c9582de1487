"""One forward over a whole token trie: how its layout reaches the model's attention layers.

Transformers looks attention functions up by name; ours is `agentrl_tree`, and a forward hands it the layout as the
model's keyword argument `tree`. No model is patched. T tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import attrs
import torch
from torch.nn.functional import pad
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from agentrl_core.errors import TrainingError
from agentrl_core.training.attention.dense import dense
from agentrl_core.training.attention.flex import flex, padded
from agentrl_core.training.attention.rect import rectangles

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core.batching.packing import MicroBatch
    from agentrl_core.training.attention.choice import Attention
    from agentrl_core.training.network import Network

IMPLEMENTATION = "agentrl_tree"
"""Name of the attention function in transformers' registry."""

_CHANGES_SCORES = ("softcap", "s_aux", "position_bias")
"""Arguments with which a model changes what attention computes; none of ours knows them."""


class Kernel(Protocol):
    """Attention along the paths of a trie: query [1, Hq, T, D], key and value [1, Hk, T, D] -> [1, Hq, T, D]."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Compute it."""
        ...


@attrs.define(eq=False)
class Tree:
    """What the attention layers need to know of a micro-batch."""

    kernel: Kernel
    depth: int
    """Tokens of the longest sequence."""
    window: int | None = None
    """Smallest sliding window that a layer asked for; filled by the forward."""


@attrs.define(eq=False)
class TreeAttention:
    """Every token of the trie in one forward."""

    name: str
    longer: Attention
    """What takes micro-batches whose sequences are longer than a sliding window."""
    window: int | None = None

    merges = True

    def prepare(self, batch: MicroBatch) -> Kernel:
        """Make the kernel for a micro-batch."""
        nodes = batch.trie.nodes
        if self.name == "flex":
            return flex(nodes, batch.ids.device)
        attend = {"rect": rectangles, "dense": dense}[self.name]
        return lambda query, key, value, scale: attend(query, key, value, nodes, scale)

    def padded(self, tokens: int) -> int:
        """Tokens that the kernel takes for so many."""
        return padded(tokens) if self.name == "flex" else tokens

    def logprobs(self, network: Network, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies of the batch's predictions. [U] each."""
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
        return network.score(states, wanted.token, wanted.temperature)


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
    """Follow transformers' protocol for attention functions."""
    unknown = [name for name in _CHANGES_SCORES if others.get(name) is not None]
    unknown += ["a mask"] * (attention_mask is not None) + ["dropout"] * (dropout > 0)
    if unknown:
        raise TrainingError(f"{type(module).__name__} attends with {', '.join(unknown)}, for which no tree is made")
    if sliding_window is not None:
        tree.window = min(sliding_window, tree.window or sliding_window)
        if tree.depth > sliding_window:
            raise TrainingError(
                f"{type(module).__name__} has a sliding window of {sliding_window} tokens, a sequence {tree.depth}; "
                "attention over a tree has no window"
            )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return tree.kernel(query, key, value, scale).transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, _tree_attention)
