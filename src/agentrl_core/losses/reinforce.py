"""REINFORCE and RLOO: the negative log-likelihood of the sampled tokens times their advantage, without clipping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from agentrl_core.api.losses import LossBatch, LossOutput
from agentrl_core.losses.trust_region import importance_ratio, ratio_metrics


@attrs.frozen(kw_only=True)
class Reinforce:
    """Williams' policy gradient (Machine Learning 8, 1992), for any advantage.

        l = -w * A * log pi_theta,  w = 1, or sg(rho) with `importance_weight`;  rho = exp(log pi_theta - log mu)

    Normaliser: mean over sequences of each sequence's token sum, because the log-likelihood of a sequence is the sum
    over its tokens. Advantage: the config's; `none` is the plain reward, `leave_one_out` makes it RLOO.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    aggregation_defaults: ClassVar[Mapping[str, Any]] = {"aggregation": "seq_mean_token_sum"}

    importance_weight: bool = False
    """Weight each token by its detached ratio: unbiased per token for off-policy samples, but unbounded. For a bounded
    weight use the correction `truncated_is` instead."""

    @property
    def stops_gradient(self) -> bool:
        """True if the loss has a detached weight."""
        return self.importance_weight

    def loss(self, batch: LossBatch) -> LossOutput:
        """Return the loss per token [N]; the trainer aggregates and divides it."""
        ratio = importance_ratio(batch).detach()
        terms = -batch.advantages * batch.logprobs
        return LossOutput(
            per_token=ratio * terms if self.importance_weight else terms,
            keep=batch.mask,
            metrics=ratio_metrics(batch, ratio, batch.mask == 0),
        )


@attrs.frozen(kw_only=True)
class RLOO(Reinforce):
    """REINFORCE with the mean reward of the group's other records as baseline (arXiv 2402.14740).

        l = -A * log pi_theta,  A = R - mean(R of the group's other records)

    Normaliser: mean over sequences of each sequence's token sum. Advantage: `leave_one_out`.
    """

    advantage_default: ClassVar[Mapping[str, Any]] = {"use": "leave_one_out"}
