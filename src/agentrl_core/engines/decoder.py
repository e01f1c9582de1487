"""Forward pass of a Llama-like decoder over a batch of decoding and prefilling rows, as one compiled call.

It replaces the model's own forward for two reasons. At the sizes that train on a CPU, Python and many small operators
cost more than the arithmetic. And every operator called from Python releases the interpreter lock (GIL); beside a busy
event loop it takes a whole switch interval to get it back. Here a decode step is one TorchScript call without the lock.

Shapes: N packed tokens (one of each decoding row, then those of the spans), D decoding rows, R rows of the cache, T
cells of a row, P cells of the prefix store, L layers, H query heads, K key-value heads, G = H / K, E head dimension, B
sampled rows. Keys and values lie side by side: [L, R, 2K, T, E] in the cache, [L, 2K, P, E] in the store.
"""

# No `from __future__ import annotations`: TorchScript needs the attributes' types as objects, not as strings.
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from agentrl_core.engines.sampling import Draw, likeliest, sample


class StepPlan(NamedTuple):
    """Work of one step: the copies to do first, the tokens to compute, and how to sample."""

    saves: list[tuple[int, int, int]]
    """First copies: (row, first position, count), from a row into the store."""
    moves: list[tuple[int, int, int]]
    """Second copies: (row, row to copy from, count), which fill the gaps that finished jobs left."""
    loads: list[tuple[int, int]]
    """Third copies: (row, count), from the store to the beginning of a row."""
    store_cells: Tensor
    """Cells of the store, in the order in which saves and then loads use them."""
    tokens: Tensor
    """Ids, positions and rows, [3, N]: one token of each row below `num_decoding`, then the tokens of `spans`."""
    num_decoding: int
    longest: int
    """Number of cells that the decoding rows attend to; above all of their positions."""
    spans: list[tuple[int, int, int]]
    """Prefill work: (row, first position, number of tokens)."""
    outputs: Tensor
    """Indexes [B] of the packed tokens whose successor is sampled."""
    draw: Draw


class Decoder(nn.Module):
    """Weights of a model in a layout that needs few operators, and the step that uses them.

    `layers` holds six tensors per layer: attention input [hidden, (H + 2K) E], its bias or an empty tensor, query and
    key norm [H + K, E] or an empty tensor, attention output, MLP input (gate, up), MLP output. All are multiplied from
    the right (`x @ w`). Norms divide by the root of the sum of squares, not of the mean: the factor between the two is
    in the weights. The weights of a layer's two norms are merged into the matrices that follow them. The E numbers of a
    query or key are ordered so that the two of each rotary pair are neighbours, and queries already carry the factor 1
    / sqrt(E).
    """

    layers: list[Tensor]

    def __init__(
        self,
        *,
        embedding: Tensor,
        layers: list[Tensor],
        final_norm: Tensor,
        head: Tensor,
        rope: Tensor,
        num_heads: int,
        num_kv_heads: int,
        epsilon: float,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = layers
        self.final_norm = final_norm
        self.head = head
        self.rope = rope
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = rope.shape[1] * 2
        self.epsilon = epsilon

    def forward(self, cache: Tensor, store: Tensor, plan: StepPlan) -> tuple[Tensor, Tensor, Tensor]:
        """Carry out `plan` on the rows of `cache` and the prefix `store`.

        Returns both results of `sample`, and that of `likeliest` if some row asks for it.
        """
        copy_cells(cache, store, plan)
        x = self.hidden(cache, plan)
        x = self.norm(x.index_select(0, plan.outputs)).mul_(self.final_norm)
        logits = functional.linear(x, self.head)
        sampled, kept = sample(logits, plan.draw)
        return sampled, kept, likeliest(logits, plan.draw) if plan.draw.num_likeliest > 0 else sampled[:0]

    def hidden(self, cache: Tensor, plan: StepPlan) -> Tensor:
        """Return the residual stream after the last layer, [N, hidden]."""
        ids_N, positions_N, rows_N = plan.tokens.unbind(0)
        heads, keys = self.num_heads, self.num_kv_heads
        # Destination of each token's 2K keys and values, as indexes into the cells of one layer.
        cells = (rows_N.unsqueeze(1) * (2 * keys) + torch.arange(2 * keys)).mul_(cache.shape[3])
        cells = (cells + positions_N.unsqueeze(1)).flatten()
        rope = self.rope.index_select(0, positions_N).unsqueeze(1)
        masks = self.masks(positions_N[: plan.num_decoding], plan)
        x = self.embedding.index_select(0, ids_N)
        for layer in range(len(self.layers) // 6):
            w_in, bias, norm, w_out, w_up, w_down = self.layers[6 * layer : 6 * layer + 6]
            h = self.norm(x)
            h = torch.addmm(bias, h, w_in) if bias.numel() > 0 else torch.mm(h, w_in)
            h = h.view(-1, heads + 2 * keys, self.head_dim)
            qk = h[:, : heads + keys]
            if norm.numel() > 0:
                qk.mul_(self.scale(qk)).mul_(norm)
            # Rotary embedding: rotating a pair of numbers is a complex multiplication. In place, inside of `h`.
            torch.view_as_complex(qk.view(-1, heads + keys, self.head_dim // 2, 2)).mul_(rope)
            past = cache[layer]
            past.view(-1, self.head_dim).index_copy_(0, cells, h[:, heads:].reshape(-1, self.head_dim))
            x = torch.addmm(x, self.attend(h[:, :heads], past, plan, masks), w_out)
            gate, up = torch.mm(self.norm(x), w_up).chunk(2, 1)
            x = torch.addmm(x, functional.silu(gate).mul_(up), w_down)
        return x

    def norm(self, x: Tensor) -> Tensor:
        """Return `x` over the root of the sum of its squares: RMSNorm, whose other factors are in the weights."""
        return x * self.scale(x)

    def scale(self, x: Tensor) -> Tensor:
        """Return the factor that `norm` multiplies by, [..., 1]."""
        return (x * x).sum(-1, keepdim=True).add_(self.epsilon * x.shape[-1]).rsqrt_()

    def masks(self, positions_D: Tensor, plan: StepPlan) -> list[Tensor]:
        """Return masks to add to the scores (0, or -inf at later positions): of all decoding rows, then per span."""
        masks: list[Tensor] = []
        later = torch.arange(plan.longest) > positions_D.unsqueeze(1)
        masks.append(torch.zeros(later.shape).masked_fill_(later, -float("inf")).unsqueeze(1))
        for _, start, count in plan.spans:
            later = torch.arange(start + count) > torch.arange(start, start + count).unsqueeze(1)
            masks.append(torch.zeros(later.shape).masked_fill_(later, -float("inf")))
        return masks

    def attend(self, q: Tensor, past: Tensor, plan: StepPlan, masks: list[Tensor]) -> Tensor:
        """Return each token's attention over its row, [N, H E]; `q` is [N, H, E], `past` is [R, 2K, T, E]."""
        keys, group, size = self.num_kv_heads, self.num_heads // self.num_kv_heads, self.head_dim
        first = plan.num_decoding
        parts: list[Tensor] = []
        if first > 0:
            # Batched products are twice as fast here as fused attention, which is made for many queries per row.
            k = past[:first, :keys, : plan.longest].flatten(0, 1)
            v = past[:first, keys:, : plan.longest].flatten(0, 1)
            scores = torch.bmm(q[:first].reshape(-1, group, size), k.transpose(1, 2))
            scores.view(first, -1, plan.longest).add_(masks[0])
            parts.append(torch.bmm(scores.softmax(2), v).view(first, -1))
        for index, (row, start, count) in enumerate(plan.spans):
            heads = q[first : first + count].view(count, keys, group, size).permute(1, 2, 0, 3)
            k = past[row, :keys, : start + count].unsqueeze(1).expand(-1, group, -1, -1)
            v = past[row, keys:, : start + count].unsqueeze(1).expand(-1, group, -1, -1)
            mask = masks[index + 1] if start > 0 else None
            out = functional.scaled_dot_product_attention(heads, k, v, mask, is_causal=start == 0, scale=1.0)
            parts.append(out.permute(2, 0, 1, 3).reshape(count, -1))
            first += count
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def copy_cells(cache: Tensor, store: Tensor, plan: StepPlan) -> None:
    """Carry out the copies of a plan.

    The order matters: finished rows are saved before moves overwrite them.
    """
    used = 0
    for row, start, count in plan.saves:
        part = cache[:, row, :, start : start + count]
        store.index_copy_(2, plan.store_cells[used : used + count], part)
        used += count
    for row, source, count in plan.moves:
        cache[:, row, :, :count] = cache[:, source, :, :count]
    for row, count in plan.loads:
        cache[:, row, :, :count] = store.index_select(2, plan.store_cells[used : used + count])
        used += count
