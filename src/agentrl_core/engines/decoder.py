"""Forward pass of a Llama-like decoder over a batch of decoding and prefilling rows, as one compiled call.

It replaces the model's own forward for two reasons. At the sizes that train on a CPU, Python and many small operators
cost more than the arithmetic. And every operator called from Python releases the interpreter lock (GIL); beside a busy
event loop it takes a whole switch interval to get it back. Here a decode step is one TorchScript call without the lock.

Shapes: N packed tokens (one of each decoding row, then those of the spans), D decoding rows, R rows of the cache, T
cells of a row, P cells of the prefix store, L layers, H query heads, K key-value heads, G = H / K, E head dimension, B
sampled rows. Keys come before values: [L, 2, R, K, T, E] in the cache, [L, 2, K, P, E] in the store.
"""

# No `from __future__ import annotations`: TorchScript needs the attributes' types as objects, not as strings.
from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional

from agentrl_core.engines.sampling import Draw, likeliest, sample

LAYER_TENSORS = 8
"""Number of tensors per layer in `Decoder.layers`."""


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
    """Ids, positions and rows, [3, N or more]: one token of each row below `num_decoding`, then the tokens of `spans`,
    then padding."""
    num_tokens: int
    """Number of tokens before the padding, N."""
    num_decoding: int
    longest: int
    """Number of cells that the decoding rows attend to; above all of their positions."""
    spans: list[tuple[int, int, int]]
    """Prefill work: (row, first position, number of tokens)."""
    outputs: Tensor
    """Indexes [B or more] of the packed tokens whose successor is sampled; those of padding come last."""
    draw: Draw


class Decoder(nn.Module):
    """Weights of a model in a layout that needs few operators, and the step that uses them.

    `layers` holds eight tensors per layer: input norm, attention input [hidden, (H + 2K) E], its bias, query and key
    norm [H + K, E], attention output, MLP norm, MLP input (gate, up), MLP output. Those that a model lacks are empty.
    Matrices are multiplied from the right (`x @ w`), or are in oneDNN's own layout if `packed` is true.

    In float32, norms divide by the root of the sum of squares, not of the mean: the factor between the two is in the
    weights. The weights of a layer's two norms are merged into the matrices that follow them. The E numbers of a query
    or key are ordered so that the two of each rotary pair are neighbours, and queries already carry the factor 1 /
    sqrt(E).

    In bfloat16 (`rounded`) nothing is merged, and every result is rounded where transformers rounds it: a merged weight
    would be rounded once more, and the gap to the learner's logprobs would be that of all of these roundings. `rope`
    then holds cosine and sine, [2, context, E], instead of complex numbers. Logits are float32 in any case.
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
        head_dim: int,
        epsilon: float,
        packed: bool,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = layers
        self.final_norm = final_norm
        self.head = head
        self.rope = rope
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.epsilon = epsilon
        self.packed = packed
        self.rounded = embedding.dtype != torch.float32

    def forward(self, cache: Tensor, store: Tensor, plan: StepPlan) -> tuple[Tensor, Tensor, Tensor]:
        """Carry out `plan` on the rows of `cache` and the prefix `store`.

        Returns both results of `sample`, and that of `likeliest` if some row asks for it.
        """
        copy_cells(cache, store, plan)
        logits = self.logits(self.hidden(cache, plan).index_select(0, plan.outputs))[: plan.draw.knobs.shape[1]]
        sampled, kept = sample(logits, plan.draw)
        return sampled, kept, likeliest(logits, plan.draw) if plan.draw.num_likeliest > 0 else sampled[:0]

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of residual vectors, [B, V] in float32."""
        x = self.norm(x, self.final_norm)
        if self.packed:
            return multiply_packed(x.float(), self.head, None)
        if self.rounded:
            # Without rounding the logits. The learner's are not rounded either.
            return torch.mm(x, self.head.t(), out_dtype=torch.float32) if x.is_cuda else multiply_wide(x, self.head)
        return functional.linear(x, self.head)

    def hidden(self, cache: Tensor, plan: StepPlan) -> Tensor:
        """Return the residual stream after the last layer, [N or more, hidden]."""
        ids, positions, rows = plan.tokens.unbind(0)
        count, heads, keys, size = plan.num_tokens, self.num_heads, self.num_kv_heads, self.head_dim
        cells = self.cells(cache, positions[:count], rows[:count])
        rope = self.rope.index_select(self.rope.dim() - 2, positions).unsqueeze(-2)
        masks = self.masks(positions[: plan.num_decoding], plan)
        x = self.embedding.index_select(0, ids)
        for layer in range(len(self.layers) // 8):
            norm_in, w_in, bias, norm_qk, w_out, norm_mlp, w_up, w_down = self.layers[8 * layer : 8 * layer + 8]
            h = self.multiply(self.norm(x, norm_in), w_in, bias).view(-1, heads + 2 * keys, size)
            h = self.rotated(h, norm_qk, rope)
            past = cache[layer]
            past.view(-1, size).index_copy_(0, cells, h[:count, heads:].reshape(-1, size))
            x = self.add_product(x, self.attend(h[:, :heads], past, plan, masks), w_out)
            gate, up = self.multiply(self.norm(x, norm_mlp), w_up, norm_qk[:0]).chunk(2, 1)
            x = self.add_product(x, functional.silu(gate).mul_(up), w_down)
        return x

    def multiply(self, x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        """Return `x @ w`, plus `bias` if that is not empty."""
        if self.packed:
            return multiply_packed(x, w, bias if bias.numel() > 0 else None)
        return torch.addmm(bias, x, w) if bias.numel() > 0 else torch.mm(x, w)

    def add_product(self, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        """Return `x + y @ w`; in bfloat16 the product is rounded before it is added."""
        if self.rounded:
            return x + self.multiply(y, w, y[:0])
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(y, x, w, None, "add")
        return torch.addmm(x, y, w)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return RMSNorm of `x`; in float32 without the factors that are merged into other weights (if `weight` is
        empty) or are in `weight`."""
        if self.rounded:
            wide = x.float()
            return (wide * (wide * wide).mean(-1, keepdim=True).add_(self.epsilon).rsqrt_()).to(x.dtype).mul_(weight)
        x = x * self.scale(x)
        return x.mul_(weight) if weight.numel() > 0 else x

    def scale(self, x: Tensor) -> Tensor:
        """Return one over the root of the sum of squares, [..., 1]."""
        return (x * x).sum(-1, keepdim=True).add_(self.epsilon * x.shape[-1]).rsqrt_()

    def rotated(self, h: Tensor, norm: Tensor, rope: Tensor) -> Tensor:
        """Return `h` [N, H + 2K, E] with queries and keys normalised, if the model does that, and rotated."""
        num_rotated = self.num_heads + self.num_kv_heads
        qk = h[:, :num_rotated]
        if self.rounded:
            if norm.numel() > 0:
                qk = self.norm(qk, norm)
            low, high = qk.chunk(2, -1)
            turned = (qk * rope[0]).add_(torch.cat((-high, low), -1).mul_(rope[1]))
            return torch.cat((turned, h[:, num_rotated:]), 1)
        if norm.numel() > 0:
            qk.mul_(self.scale(qk)).mul_(norm)
        # Rotating a pair of numbers is a complex multiplication. In place, inside of `h`.
        torch.view_as_complex(qk.view(-1, num_rotated, self.head_dim // 2, 2)).mul_(rope)
        return h

    def cells(self, cache: Tensor, positions_N: Tensor, rows_N: Tensor) -> Tensor:
        """Return the destinations of each token's K keys and K values, [2KN], as indexes into the cells of a layer."""
        keys, cells = self.num_kv_heads, cache.shape[4]
        heads = torch.arange(2 * keys, device=rows_N.device)
        heads = torch.where(heads < keys, heads, heads + (cache.shape[2] - 1) * keys)
        return ((rows_N.unsqueeze(1) * keys + heads).mul_(cells) + positions_N.unsqueeze(1)).flatten()

    def masks(self, positions_D: Tensor, plan: StepPlan) -> list[Tensor]:
        """Return masks to add to the scores (0, or -inf at later positions): of all decoding rows, then per span."""
        device = positions_D.device
        masks: list[Tensor] = []
        later = torch.arange(plan.longest, device=device) > positions_D.unsqueeze(1)
        masks.append(torch.zeros(later.shape, device=device).masked_fill_(later, -float("inf")).unsqueeze(1))
        for _, start, count in plan.spans:
            if start == 0:
                masks.append(later[:0])  # `is_causal` says it
                continue
            queries = torch.arange(start, start + count, device=device).unsqueeze(1)
            later = torch.arange(start + count, device=device) > queries
            zeros = torch.zeros(later.shape, device=device, dtype=self.embedding.dtype)
            masks.append(zeros.masked_fill_(later, -float("inf")))
        return masks

    def attend(self, q: Tensor, past: Tensor, plan: StepPlan, masks: list[Tensor]) -> Tensor:
        """Return each token's attention over its row, [N, H E]; `q` is [N, H, E], `past` is [2, R, K, T, E]."""
        keys, group, size = self.num_kv_heads, self.num_heads // self.num_kv_heads, self.head_dim
        scale = size**-0.5 if self.rounded else 1.0
        first = plan.num_decoding
        parts: list[Tensor] = []
        if first > 0:
            parts.append(self.attend_decoding(q[:first].reshape(-1, group, size), past, masks[0]).view(first, -1))
        for index, (row, start, count) in enumerate(plan.spans):
            heads = q[first : first + count].view(count, keys, group, size).permute(1, 2, 0, 3)
            k = past[0, row, :, : start + count].unsqueeze(1).expand(-1, group, -1, -1)
            v = past[1, row, :, : start + count].unsqueeze(1).expand(-1, group, -1, -1)
            mask = masks[index + 1] if start > 0 else None
            out = functional.scaled_dot_product_attention(heads, k, v, mask, is_causal=start == 0, scale=scale)
            parts.append(out.permute(2, 0, 1, 3).reshape(count, -1))
            first += count
        if first < q.shape[0]:
            parts.append(q.new_zeros([q.shape[0] - first, q.shape[1] * size]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def attend_decoding(self, q: Tensor, past: Tensor, mask: Tensor) -> Tensor:
        """Return the attention of one token per row, [D K, G, E]; `q` is [D K, G, E], `mask` is [D, 1, T].

        Batched products are twice as fast here as fused attention, which is made for many queries per row; keys from
        the left are 1.4 to 2.5 times as fast as queries from the left. The keys and values are views: copies of several
        MB cost more than the products, because the memory is new, and mapped page by page, at every step.
        """
        rows, longest = mask.shape[0], mask.shape[2]
        k = past[0, :rows, :, :longest].flatten(0, 1)
        v = past[1, :rows, :, :longest].flatten(0, 1)
        scores = torch.bmm(k, q.transpose(1, 2)).transpose(1, 2)
        if self.rounded:
            scores = scores.float() * self.head_dim**-0.5
        scores = (scores.reshape(rows, -1, longest) + mask).softmax(2).to(q.dtype)
        return torch.bmm(scores.view(-1, q.shape[1], longest), v)


def multiply_packed(x: Tensor, w: Tensor, bias: Optional[Tensor]) -> Tensor:
    """Return `x` times a matrix in oneDNN's layout. On AMD's processors it is 2 to 3 times as fast as MKL."""
    return torch.ops.mkldnn._linear_pointwise(x, w, bias, "none", [], "")


def multiply_wide(x: Tensor, w: Tensor) -> Tensor:
    """Return `x @ w.T` without rounding the result to the dtype of the operands."""
    return functional.linear(x.float(), w.float())


def copy_cells(cache: Tensor, store: Tensor, plan: StepPlan) -> None:
    """Carry out the copies of a plan.

    The order matters: finished rows are saved before moves overwrite them.
    """
    used = 0
    for row, start, count in plan.saves:
        part = cache[:, :, row, :, start : start + count]
        store.index_copy_(3, plan.store_cells[used : used + count], part)
        used += count
    for row, source, count in plan.moves:
        cache[:, :, row, :, :count] = cache[:, :, source, :, :count]
    for row, count in plan.loads:
        cache[:, :, row, :, :count] = store.index_select(3, plan.store_cells[used : used + count])
        used += count
