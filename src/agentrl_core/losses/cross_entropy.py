"""Cross-entropy: supervised training on tokens that are right by themselves."""

from __future__ import annotations

from typing import ClassVar

import attrs

from agentrl_core.api.losses import LossBatch, LossOutput


@attrs.frozen(kw_only=True)
class CrossEntropy:
    """Negative log-likelihood: l = -log pi_theta. Advantages and the sampling policy play no part.

    Normaliser: the config's `aggregation`; by default the sum over loss tokens / loss tokens of the update.
    """

    needs: ClassVar[frozenset[str]] = frozenset()

    def loss(self, batch: LossBatch) -> LossOutput:
        """Per-token loss; aggregation and its denominator are the trainer's."""
        return LossOutput(per_token=-batch.logprobs, keep=batch.mask)
