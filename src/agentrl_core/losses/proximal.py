"""The proximal policy's log-probs without a forward of their own. N loss tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core.api.losses import LossBatch


def loglinear_proximal(batch: LossBatch) -> Tensor:
    """Interpolate by policy versions between the policy that sampled and the one being trained; no gradient. [N].

        log pi_prox = log mu + alpha * (log pi_theta - log mu),  alpha = (v_prox - v_mu) / (v_theta - v_mu)

    AReaL's `prox_logp_method: loglinear`. v_prox is the version before this step and v_theta = v_prox + 1 the one in
    the making, so alpha = lag / (lag + 1): what is fresh was sampled by the proximal policy itself, and the older a
    token, the nearer to pi_theta its proximal policy is.
    """
    import torch

    lag = batch.lag.clamp_min(0).to(batch.logprobs.dtype)
    return torch.lerp(batch.behaviour_logprobs, batch.logprobs.detach(), lag / (lag + 1))
