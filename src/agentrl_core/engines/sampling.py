"""Sample the next token of every row of a batch, each with its own random number.

Written in the subset of Python that TorchScript compiles. Shapes: B rows, C constrained rows, R rows that return their
likeliest tokens, K likeliest tokens or blocks of tokens, T tokens of a block, M rows that return their sampling masks,
E tokens in these masks, V vocabulary.
"""

# No `from __future__ import annotations`: TorchScript needs the fields' types of `Draw` as objects, not as strings.
from typing import Final, NamedTuple

import torch
from torch import Tensor

from agentrl_core.engines.truncation import least_kept


BLOCK: Final[int] = 256
"""Tokens that are summed up before the cumulative sum."""
SMALL: Final[int] = 4096
"""Largest vocabulary that is sampled from without blocks, which need more operators."""


class Draw(NamedTuple):
    """Sampling parameters of a batch's rows."""

    knobs: Tensor
    """[4, B] in float64: a uniform random number in [0, 1), the temperature (0 picks the likeliest token), top_p, and
    top_k (0 keeps all)."""
    any_greedy: bool
    """Whether some row has temperature 0; without such rows, their extra work is skipped."""
    truncated: Tensor
    """Rows that use top-p or top-k, long."""
    keeping: Tensor
    """Rows that return their sampling masks, [M]; none of temperature 0."""
    constrained: Tensor
    """Rows that may sample some tokens only, [C]."""
    allowed: Tensor
    """Tokens that they may sample, [C, V] of bool; at least one per row."""
    telling: Tensor
    """Rows that return their likeliest tokens, [R]."""
    num_likeliest: int
    """Number of likeliest tokens, K; 0 if no row returns any."""


def sample(logits_BV: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
    """Return sampled tokens [3, B] and sampling masks [2, E].

    Tokens: ids, logprobs as recorded, and logprobs before constraints, top-p and top-k; in float64, so that one
    transfer brings all. Both logprobs are of the temperature-scaled distribution, at temperature 0 of the unscaled one.
    In rows that return their masks, the recorded one is renormalised over what was left. Masks: places in
    `draw.keeping`, rising, and ids, rising in each row. Each row uses one uniform number and the inverse cumulative
    distribution, so its token does not depend on the other rows.
    """
    uniform_B, temperature_B, top_p_B, top_k_B = draw.knobs.unbind(0)
    scale_B = torch.where(temperature_B > 0, temperature_B, 1.0) if draw.any_greedy else temperature_B
    scale_B1 = scale_B.to(logits_BV.dtype).unsqueeze(1)
    scaled_BV = logits_BV / scale_B1
    highest_B1 = scaled_BV.amax(-1, keepdim=True)
    weights_BV = (scaled_BV - highest_B1).exp_()
    sums_BK = block_sums(weights_BV)
    total_B1 = sums_BK.sum(-1, keepdim=True, dtype=torch.float64)
    choices_BV = logits_BV
    if draw.constrained.numel() > 0:
        left_CV = logits_BV.index_select(0, draw.constrained).masked_fill_(~draw.allowed, -float("inf"))
        # A new softmax over the allowed tokens: next to likely tokens that are excluded, their weights may all round
        # to 0.
        weights_CV = (left_CV / scale_B1.index_select(0, draw.constrained)).softmax(-1)
        weights_BV.index_copy_(0, draw.constrained, weights_CV)
        choices_BV = logits_BV.index_copy(0, draw.constrained, left_CV)
    if draw.truncated.numel() > 0:
        cut_RV = weights_BV.index_select(0, draw.truncated)
        cut_RV = cut_RV / cut_RV.sum(-1, keepdim=True)
        top_p_R, top_k_R = top_p_B.index_select(0, draw.truncated), top_k_B.index_select(0, draw.truncated)
        cut_RV = cut_RV.masked_fill(cut_RV < least_kept(cut_RV, top_p_R, top_k_R), 0.0)
        weights_BV.index_copy_(0, draw.truncated, cut_RV)
    if draw.truncated.numel() > 0 or draw.constrained.numel() > 0:
        sums_BK = block_sums(weights_BV)
    ids_B1 = pick(weights_BV, sums_BK, uniform_B.unsqueeze(1))
    if draw.any_greedy:
        ids_B1 = torch.where(temperature_B.unsqueeze(1) > 0, ids_B1, choices_BV.argmax(-1, keepdim=True))
    before_B1 = (scaled_BV.gather(1, ids_B1) - highest_B1).to(torch.float64) - total_B1.log()
    recorded_B1, kept_2E = before_B1, ids_B1[:0].expand(0, 2).t()
    if draw.keeping.numel() > 0:
        # A single token that is left gets exactly 0: its weight is the total.
        left_B1 = weights_BV.gather(1, ids_B1).to(torch.float64).log() - sums_BK.sum(
            -1, keepdim=True, dtype=torch.float64
        ).log()
        recorded_B1 = before_B1.index_copy(0, draw.keeping, left_B1.index_select(0, draw.keeping))
        kept_2E = (weights_BV.index_select(0, draw.keeping) > 0).nonzero().t()
    return torch.cat((ids_B1.to(torch.float64), recorded_B1, before_B1), 1).t(), kept_2E


def block_sums(weights_BV: Tensor) -> Tensor:
    """Return the sums of consecutive blocks of `BLOCK` tokens, [B, K]; of each token alone in a small vocabulary."""
    size = weights_BV.shape[1]
    if size <= SMALL:
        return weights_BV
    whole = size // BLOCK * BLOCK
    sums_BK = weights_BV[:, :whole].unflatten(1, [whole // BLOCK, BLOCK]).sum(-1)
    if whole < size:
        sums_BK = torch.cat((sums_BK, weights_BV[:, whole:].sum(-1, keepdim=True)), 1)
    return sums_BK


def pick(weights_BV: Tensor, sums_BK: Tensor, uniform_B1: Tensor) -> Tensor:
    """Return the token of each row at which the cumulative weight passes the share `uniform_B1` of the total, [B, 1].

    It finds the block first, then the token inside of it. A cumulative sum over a large vocabulary takes longer than
    everything else here together: it is one addition after the other, in float64.
    """
    block_B1, rest_B1 = invert(sums_BK, uniform_B1)
    size = weights_BV.shape[1]
    if size <= SMALL:
        return block_B1
    tokens_BT = block_B1 * BLOCK + torch.arange(BLOCK, device=weights_BV.device)
    inside_BT = weights_BV.gather(1, tokens_BT.clamp(max=size - 1)).masked_fill_(tokens_BT >= size, 0.0)
    return block_B1 * BLOCK + invert(inside_BT, rest_B1)[0]


def invert(weights_BK: Tensor, share_B1: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first index at which the cumulative weight exceeds a share of the total, and which share of that
    index's own weight was left, both [B, 1].

    The index has a positive weight.
    """
    cumulative_BK = weights_BK.cumsum(-1, dtype=torch.float64)
    total_B1 = cumulative_BK[:, -1:]
    # Rounding may make the product equal to the total, which no index exceeds.
    target_B1 = torch.minimum(share_B1 * total_B1, torch.nextafter(total_B1, torch.zeros_like(total_B1)))
    index_B1 = torch.searchsorted(cumulative_BK, target_B1, right=True)
    weight_B1 = weights_BK.gather(1, index_B1)
    before_B1 = cumulative_BK.gather(1, index_B1) - weight_B1
    return index_B1, ((target_B1 - before_B1) / weight_B1).clamp_(0.0, 1.0)


def likeliest(logits_BV: Tensor, draw: Draw) -> Tensor:
    """Return the likeliest tokens of the rows that ask for them, likeliest first: ids and logprobs, [2, R, K].

    In float64. The logprobs are those before constraints, top-p and top-k.
    """
    temperature_R1 = draw.knobs[1].index_select(0, draw.telling).unsqueeze(1)
    scale_R1 = torch.where(temperature_R1 > 0, temperature_R1, 1.0).to(logits_BV.dtype)
    logprobs_RV = torch.log_softmax(logits_BV.index_select(0, draw.telling) / scale_R1, -1)
    # A tiny vocabulary may have fewer tokens than are requested.
    logprobs_RK, ids_RK = logprobs_RV.topk(min(draw.num_likeliest, logits_BV.shape[1]), -1)
    return torch.stack((ids_RK.to(torch.float64), logprobs_RK.to(torch.float64)))
