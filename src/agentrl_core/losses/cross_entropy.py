"""Cross-entropy: supervised fine-tuning on demonstrations, without advantages."""

from __future__ import annotations

from typing import ClassVar

import attrs

from agentrl_core.api.losses import LossBatch, LossOutput


@attrs.frozen(kw_only=True)
class CrossEntropy:
    """Negative log-likelihood: l = -log pi_theta. It uses neither advantages nor behaviour log-probabilities.

    Normaliser: the config's `aggregation`; by default sum over loss tokens / number of loss tokens of the whole
    optimizer update.
    """

    needs: ClassVar[frozenset[str]] = frozenset()

    def loss(self, batch: LossBatch) -> LossOutput:
        """Return the loss per token [N]; the trainer aggregates and divides it."""
        return LossOutput(per_token=-batch.logprobs, keep=batch.mask)
