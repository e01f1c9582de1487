"""REINFORCE, and RLOO: the log-likelihood of what was sampled, times its advantage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from agentrl_core.api.losses import LossBatch, LossOutput
from agentrl_core.losses.trust_region import importance_ratio, ratio_metrics


@attrs.frozen(kw_only=True)
class Reinforce:
    """Williams' policy gradient (Machine Learning 8, 1992), whatever the advantage.

        l = -w * A * log pi_theta,  w = 1, or sg(rho) with `importance_weight`;  rho = exp(log pi_theta - log mu)

    Normaliser: the mean over sequences of each one's token sum, as the log-likelihood of a sequence is the sum over
    its tokens. Advantage: the config's; `none` is the plain reward, `leave_one_out` makes it RLOO.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    aggregation_defaults: ClassVar[Mapping[str, Any]] = {"aggregation": "seq_mean_token_sum"}

    importance_weight: bool = False
    """Weigh each token by its ratio, a constant: unbiased per token off-policy, and unbounded. To bound it, leave this
    out and add the correction `truncated_is`."""

    @property
    def stops_gradient(self) -> bool:
        """The weight is a constant."""
        return self.importance_weight

    def loss(self, batch: LossBatch) -> LossOutput:
        """Per-token loss; aggregation and its denominator are the trainer's."""
        ratio = importance_ratio(batch).detach()
        terms = -batch.advantages * batch.logprobs
        return LossOutput(
            per_token=ratio * terms if self.importance_weight else terms,
            keep=batch.mask,
            metrics=ratio_metrics(batch, ratio, batch.mask == 0),
        )


@attrs.frozen(kw_only=True)
class RLOO(Reinforce):
    """REINFORCE against the mean of the group's other records (arXiv 2402.14740).

        l = -A * log pi_theta,  A = R - mean(R of the others)

    Normaliser: the mean over sequences of each one's token sum. Advantage: `leave_one_out`.
    """

    advantage_default: ClassVar[Mapping[str, Any]] = {"use": "leave_one_out"}
