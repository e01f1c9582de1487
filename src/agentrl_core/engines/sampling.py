"""Draw the next token of every row of a batch, each with its own random number.

Written in the subset of Python that TorchScript compiles. Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sample(logits_BV: Tensor, knobs_4B: Tensor, any_greedy: bool, any_truncated: bool) -> Tensor:  # noqa: FBT001 (TorchScript)
    """Return token ids and their logprobs, [2, B] in float64 so that one transfer brings both.

    `knobs_4B` (float64) holds per row: a uniform number in [0, 1), the temperature (0 picks the likeliest
    token), top_p, and top_k (0 keeps all). The logprob is of the temperature-scaled distribution before top-p
    and top-k; of the unscaled one at temperature 0. One uniform number per token through the inverse
    cumulative distribution makes a row independent of its neighbours. `any_greedy` and `any_truncated` say
    whether some row needs the work for temperature 0, or for top-p and top-k.
    """
    uniform_B, temperature_B, top_p_B, top_k_B = knobs_4B.unbind(0)
    scale_B = torch.where(temperature_B > 0, temperature_B, 1.0) if any_greedy else temperature_B
    logprobs_BV = torch.log_softmax(logits_BV / scale_B.to(logits_BV.dtype).unsqueeze(1), -1)
    weights_BV = logprobs_BV.exp()
    if any_truncated:
        weights_BV = truncate(weights_BV, top_p_B, top_k_B)
    cumulative_BV = weights_BV.cumsum(-1, dtype=torch.float64)
    target_B1 = uniform_B.unsqueeze(1) * cumulative_BV[:, -1:]
    # right=True: the first token whose cumulative weight exceeds the target, which has a positive weight itself.
    ids_B1 = torch.searchsorted(cumulative_BV, target_B1, right=True).clamp_(max=logits_BV.shape[1] - 1)
    if any_greedy:
        ids_B1 = torch.where(temperature_B.unsqueeze(1) > 0, ids_B1, logits_BV.argmax(-1, keepdim=True))
    chosen_B1 = logprobs_BV.gather(1, ids_B1)
    return torch.cat((ids_B1.to(torch.float64), chosen_B1.to(torch.float64)), 1).t()


def truncate(weights_BV: Tensor, top_p_B: Tensor, top_k_B: Tensor) -> Tensor:
    """Return the probabilities with those outside top-p or top-k set to 0; the likeliest token always stays."""
    ordered_BV, order_BV = weights_BV.sort(dim=-1, descending=True, stable=True)
    before_BV = ordered_BV.cumsum(-1, dtype=torch.float64) - ordered_BV
    rank_V = torch.arange(weights_BV.shape[1], dtype=torch.float64)
    limit_B = torch.where(top_k_B > 0, top_k_B, float(weights_BV.shape[1]))
    drop_BV = (before_BV >= top_p_B.unsqueeze(1)) | (rank_V >= limit_B.unsqueeze(1))
    drop_BV[:, 0] = False
    return weights_BV.scatter(1, order_BV, ordered_BV.masked_fill(drop_BV, 0.0))
