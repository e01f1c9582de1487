"""Approximate the proximal policy's log-probabilities without another forward pass (`loss.proximal: loglinear`).

N loss tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core.api.losses import LossBatch


def loglinear_proximal(batch: LossBatch) -> Tensor:
    """Interpolate by policy versions between behaviour and current log-probabilities; no gradient. [N].

        log pi_prox = log mu + alpha * (log pi_theta - log mu),  alpha = (v_prox - v_mu) / (v_theta - v_mu)

    AReaL's `prox_logp_method: loglinear`. v_prox is the version before this step, v_theta = v_prox + 1 the version that
    this step makes, so alpha = lag / (lag + 1). A token of lag 0 was sampled by the proximal policy itself. The larger
    the lag, the nearer the proximal policy is to pi_theta.
    """
    import torch

    lag = batch.lag.clamp_min(0).to(batch.logprobs.dtype)
    return torch.lerp(batch.behaviour_logprobs, batch.logprobs.detach(), lag / (lag + 1))
