"""Truncate distributions to their likeliest tokens: top-k, and then top-p, at a tenth of the cost of sorting all.

The order is that of vLLM and transformers: the temperature first, then top-k, then top-p of what top-k leaves. SGLang
takes both from the whole distribution. Whatever the order, the sampling mask tells which tokens were left. Written in
the subset of Python that TorchScript compiles. R rows, V vocabulary, K likeliest tokens that are looked at.
"""

import torch
from torch import Tensor

FEW = 128
"""Number of likeliest tokens that top-p looks at first. In nearly all rows of a trained model they suffice."""


def least_kept(weights_RV: Tensor, top_p_R: Tensor, top_k_R: Tensor) -> Tensor:
    """Return the smallest probability that is left to sample from, [R, 1]; the likeliest token always stays.

    `weights_RV` are probabilities, or proportional to them. Tokens of equal probability stay or go together, as in vLLM
    and transformers: which of them a sort puts first may depend on the other rows.
    """
    size = weights_RV.shape[1]
    most = int(torch.where(top_k_R > 0, top_k_R, float(FEW)).max())
    if most < size:
        ordered_RK = weights_RV.topk(most, dim=1)[0]
        least_R1, is_enough = _least(weights_RV, ordered_RK, top_p_R, top_k_R)
        if is_enough:
            return least_R1
    return _least(weights_RV, weights_RV.sort(dim=1, descending=True)[0], top_p_R, top_k_R)[0]


def _least(weights_RV: Tensor, ordered_RK: Tensor, top_p_R: Tensor, top_k_R: Tensor) -> tuple[Tensor, bool]:
    """Return the smallest probability left, and whether the K likeliest tokens were enough to know it."""
    size, count = weights_RV.shape[1], ordered_RK.shape[1]
    limit_R1 = torch.where(top_k_R > 0, top_k_R, float(size)).clamp(max=size).to(torch.int64).unsqueeze(1)
    inside_R1 = limit_R1 <= count
    kth_R1 = ordered_RK.gather(1, limit_R1.clamp(max=count) - 1)
    kth_R1 = torch.where(inside_R1, kth_R1, torch.zeros_like(kth_R1))
    total_R1 = weights_RV.masked_fill(weights_RV < kth_R1, 0.0).sum(1, keepdim=True, dtype=torch.float64)
    before_RK = ordered_RK.cumsum(1, dtype=torch.float64) - ordered_RK
    left_RK = (before_RK < top_p_R.unsqueeze(1) * total_R1) & (ordered_RK >= kth_R1)
    number_R1 = left_RK.sum(1, keepdim=True).clamp(min=1)
    is_enough = count == size or not bool((~inside_R1 & (number_R1 == count)).any())
    return ordered_RK.gather(1, number_R1 - 1), is_enough
