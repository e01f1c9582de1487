"""Attention over a token trie by one causal flash call per node: exact, without a mask, memory linear in the tokens.

A node's keys are seen by its own tokens causally and by all that lies below it whole: the causal rectangle of
queries [start, stop) and keys [start, end). What a token gets from the nodes on its path is merged by their
log-sum-exps, as blocks are in flash attention (arXiv 2205.14135, section 3.1); backward, each rectangle's gradient
is the stock kernel's with the merged output and log-sum-exp, as in ring attention (arXiv 2310.01889).
Hq query heads, Hk key heads, T tokens, D head width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from agentrl_core.batching.trie import Node

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001  # the kernel that gives log-sum-exps
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001


def rectangles(query: Tensor, key: Tensor, value: Tensor, nodes: Sequence[Node], scale: float) -> Tensor:
    """Attend along every token's path. query [1, Hq, T, D], key and value [1, Hk, T, D] -> [1, Hq, T, D]."""
    output: Tensor = _Rectangles.apply(  # type: ignore[no-untyped-call]  # autograd's own signature
        query, key, value, nodes, scale
    )
    return output


class _Rectangles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, nodes: Sequence[Node], scale: float) -> Tensor:
        # models hand over views with the heads side by side; the kernel is up to 1.5 times as fast on heads by
        # themselves, whose rows lie close together
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        output: Tensor
        if len(nodes) == 1:
            output, weight = _forward(query, key, value, 0.0, True, scale=scale)
        else:
            output, weight = _merged(query, key, value, nodes, scale)
        ctx.save_for_backward(query, key, value, output, weight)
        ctx.nodes, ctx.scale = nodes, scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        to_query, to_key, to_value = _side_by_side(query), _side_by_side(key), _side_by_side(value)
        covered = 0
        for start, end, stop in ctx.nodes:
            below, own = (..., slice(start, stop), slice(None)), (..., slice(start, end), slice(None))
            part, to_key[own], to_value[own] = _backward(
                gradient[below],
                query[below],
                key[own],
                value[own],
                output[below],
                weight[..., start:stop].contiguous(),
                0.0,
                True,
                scale=ctx.scale,
            )
            if start >= covered:  # a root, the first to be seen by what is below it
                to_query[below] = part
                covered = stop
            else:
                to_query[below] += part
        return to_query, to_key, to_value, None, None


def _side_by_side(heads: Tensor) -> Tensor:
    """Room for gradients in the layout that the model computes in. [1, H, T, D], a view of [1, T, H, D]."""
    return torch.empty_like(heads.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)


def _merged(query: Tensor, key: Tensor, value: Tensor, nodes: Sequence[Node], scale: float) -> tuple[Tensor, Tensor]:
    """Output, and log-sum-exp of every token's scores. [1, Hq, T, D], [1, Hq, T]."""
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    output = torch.empty_like(query, dtype=wide)
    weight = query.new_empty(query.shape[:-1], dtype=wide)
    covered = 0
    for start, end, stop in nodes:
        own = (..., slice(start, end), slice(None))
        part, part_weight = _forward(query[..., start:stop, :], key[own], value[own], 0.0, True, scale=scale)
        so_far, so_far_weight = output[..., start:stop, :], weight[..., start:stop]
        if start >= covered:
            so_far.copy_(part)
            so_far_weight.copy_(part_weight)
            covered = stop
            continue
        # two averages under their own weights: the share of the new one in both
        share = torch.sigmoid(part_weight - so_far_weight)[..., None]
        so_far.lerp_(part.to(wide), share)
        so_far_weight.copy_(torch.logaddexp(so_far_weight, part_weight))
    return output.to(query.dtype), weight
