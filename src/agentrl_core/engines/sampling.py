"""Sample the next token of every row of a batch, each with its own random number.

Written in the subset of Python that TorchScript compiles. Shapes: B rows, C constrained rows, R rows that return their
likeliest tokens, K likeliest tokens, M rows that return their sampling masks, E tokens in these masks, V vocabulary.
"""

# No `from __future__ import annotations`: TorchScript needs the fields' types of `Draw` as objects, not as strings.
from typing import NamedTuple

import torch
from torch import Tensor

from agentrl_core.engines.truncation import least_kept


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
    logprobs_BV = torch.log_softmax(logits_BV / scale_B1, -1)
    weights_BV = logprobs_BV.exp()
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
        top_p_R, top_k_R = top_p_B.index_select(0, draw.truncated), top_k_B.index_select(0, draw.truncated)
        cut_RV = cut_RV.masked_fill(cut_RV < least_kept(cut_RV, top_p_R, top_k_R), 0.0)
        weights_BV.index_copy_(0, draw.truncated, cut_RV)
    cumulative_BV = weights_BV.cumsum(-1, dtype=torch.float64)
    target_B1 = uniform_B.unsqueeze(1) * cumulative_BV[:, -1:]
    # right=True finds the first token whose cumulative weight exceeds the target. Such a token has a positive weight.
    # Rounding may make the target equal to the total; the clamp keeps the index inside of the vocabulary.
    ids_B1 = torch.searchsorted(cumulative_BV, target_B1, right=True).clamp_(max=logits_BV.shape[1] - 1)
    if draw.any_greedy:
        ids_B1 = torch.where(temperature_B.unsqueeze(1) > 0, ids_B1, choices_BV.argmax(-1, keepdim=True))
    before_B1 = logprobs_BV.gather(1, ids_B1).to(torch.float64)
    recorded_B1, kept_2E = before_B1, ids_B1[:0].expand(0, 2).t()
    if draw.keeping.numel() > 0:
        # A single token that is left gets exactly 0: its weight is the total.
        left_B1 = weights_BV.gather(1, ids_B1).to(torch.float64).log() - cumulative_BV[:, -1:].log()
        recorded_B1 = before_B1.index_copy(0, draw.keeping, left_B1.index_select(0, draw.keeping))
        kept_2E = (weights_BV.index_select(0, draw.keeping) > 0).nonzero().t()
    return torch.cat((ids_B1.to(torch.float64), recorded_B1, before_B1), 1).t(), kept_2E


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
