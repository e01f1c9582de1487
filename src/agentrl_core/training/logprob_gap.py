"""Compare the engine's log-probabilities with the learner's, and stop a run in which they are not of the same weights.

Engine and learner round differently, and how much depends on their types: in float32 the largest difference of a step
is some 1e-5 nats; in bfloat16 it is near 1, and only the distribution tells rounding from a fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs
import torch

from agentrl_core.errors import TrainingError

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core.batching.packing import MicroBatch, Update
    from agentrl_core.batching.samples import Samples

EnginePrecision: TypeAlias = Literal["float32", "bfloat16", "unknown"]
"""Type that the engine computes in; a model server does not tell."""

_EXACT = 1e-3
"""Largest gap of one token where both compute in float32; measured: 4e-5 (SmolLM2-135M, vLLM and transformers)."""
_EXACT_MEDIAN = 1e-4
"""Median gap up to which both must be computing in float32; measured there: 4e-6, and 2e-2 if one has bfloat16."""
_ROUNDED_MEAN = 0.15
"""Largest mean gap if one of them computes in bfloat16. Measured: 0.04, and 0.16 if the learner takes a temperature of
0.9 for one of 1 (`cookbook/metrics.md`)."""
_ROUNDED_P99 = 0.8
"""Largest 99th percentile of the gaps if one of them computes in bfloat16. Measured: 0.2, and 0.9 with that fault."""
_LEAST_FOR_MEAN, _LEAST_FOR_P99 = 64, 1000
"""Tokens from which on these limits hold. The largest of a few tokens is their 99th percentile, and one in some
thousand is 1 nat off without a fault."""


@attrs.frozen(kw_only=True)
class GapLimits:
    """Limits of the gaps of one update, in nats; None: no limit."""

    largest: float | None = None
    """Of any token."""
    mean: float | None = None
    p99: float | None = None
    largest_if_exact: float | None = None
    """Of any token, if the median shows that engine and learner both compute in float32."""

    @classmethod
    def of(cls, largest: float | None, *, learner_is_precise: bool, engine: EnginePrecision) -> GapLimits:
        """Return the limits for `trainer.max_logprob_gap`; None chooses them by the types that both compute in."""
        if largest is not None:
            return cls(largest=largest)
        if learner_is_precise and engine == "float32":
            return cls(largest=_EXACT)
        exact = _EXACT if learner_is_precise and engine == "unknown" else None
        return cls(mean=_ROUNDED_MEAN, p99=_ROUNDED_P99, largest_if_exact=exact)


class LogprobGap:
    """Comparison of the engine's log-probabilities with the learner's in a step's first update, on tokens of lag 0.

    Both come from the same weights there. A difference beyond rounding means that engine and learner do not use the
    same tokens, template, temperature or weights; training would silently go wrong. With the last of these tokens in
    `update` their distribution is checked.
    """

    def __init__(self, samples: Samples, version: int, *, limits: GapLimits, update: Update) -> None:
        self._samples, self._version, self._limits = samples, version, limits
        self.begin(update)

    def begin(self, update: Update) -> None:
        """Forget all tokens: a refused update is retried as `update`, without some of them."""
        self._num_tokens = sum(int((batch.version == self._version).sum()) for batch in update.micro_batches)
        self._differences: list[Tensor] = []
        self._seen = 0
        self._worst = (0.0, "")

    def metrics(self) -> dict[str, float]:
        """Return mean, quantiles and maximum of |learner - engine| in nats, and KL(engine || learner).

        Empty if none was compared. The KL divergence is estimated by mean(r - 1 - log r) with r = exp(learner -
        engine): unbiased, and each term is at least 0 (k3 of http://joschu.net/blog/kl-approx.html).
        """
        if not self._seen:
            return {}
        differences = torch.cat(self._differences)
        gaps = differences.abs().sort().values
        return {
            "loss/logprob_gap_max": gaps[-1].item(),
            "loss/logprob_gap_mean": gaps.mean().item(),
            "loss/logprob_gap_p50": _quantile(gaps, 0.5),
            "loss/logprob_gap_p99": _quantile(gaps, 0.99),
            # expm1 stays precise for the small differences of a healthy run.
            "loss/logprob_gap_kl": (differences.expm1() - differences).mean().item(),
        }

    def inspect(self, batch: MicroBatch, logprobs: Tensor) -> None:
        """Compare one micro-batch, whose log-probabilities [N] are finite; raise `TrainingError` beyond a limit.

        Call it for every micro-batch of the first update, because any of them may contain the fault.
        """
        fresh = batch.version == self._version
        if not fresh.any():
            return
        differences = (logprobs - batch.behaviour_logprobs)[fresh].double()
        self._differences.append(differences.cpu())
        self._seen += len(differences)
        gaps = differences.abs()
        largest = gaps.max().item()
        if largest > self._worst[0]:
            worst = int(fresh.nonzero().flatten()[gaps.argmax()])
            self._worst = largest, self._place(batch, worst, logprobs[worst].item())
        if self._limits.largest is not None:
            self._check_largest(self._limits.largest)
        if self._seen >= self._num_tokens:
            self._check_distribution()

    def _place(self, batch: MicroBatch, token: int, logprob: float) -> str:
        interaction = int(batch.interaction[token])
        index = int((batch.interaction[: token + 1] == interaction).sum()) - 1
        return (
            f"record {self._samples.records[int(batch.record[token])]}, interaction "
            f"{self._samples.interactions[interaction]}, output token {index} (id {int(batch.targets[token])}): "
            f"the engine sampled it with logprob {batch.behaviour_logprobs[token].item():.6f}, but the learner "
            f"with the same weights computes {logprob:.6f}"
        )

    def _check_largest(self, limit: float) -> None:
        gap, place = self._worst
        if gap > limit:
            raise TrainingError(
                f"{place}, more than trainer.max_logprob_gap = {limit:g} apart. Engine and learner differ in weights, "
                "temperature, token ids or precision"
            )

    def _check_distribution(self) -> None:
        limits, found = self._limits, self.metrics()
        mean, median, p99 = (found[f"loss/logprob_gap_{name}"] for name in ("mean", "p50", "p99"))
        if limits.largest_if_exact is not None and median <= _EXACT_MEDIAN:
            self._check_largest(limits.largest_if_exact)
        over = [
            f"{name} {value:.3g} (at most {limit:g})"
            for name, value, limit, least in (
                ("mean", mean, limits.mean, _LEAST_FOR_MEAN),
                ("99th percentile", p99, limits.p99, _LEAST_FOR_P99),
            )
            if limit is not None and value > limit and self._seen >= least
        ]
        if over:
            raise TrainingError(
                "the logprobs of engine and learner with the same weights are further apart than bfloat16 rounds: "
                f"{' and '.join(over)}, over {self._seen} tokens with the median {median:.3g} and the maximum "
                f"{self._worst[0]:.3g}. The worst: {self._worst[1]}. Engine and learner differ in weights, "
                "temperature, token ids or model code; if this model rounds so much, trainer.max_logprob_gap: NUMBER "
                "limits the maximum instead"
            )


def _quantile(ordered: Tensor, share: float) -> float:
    """Return a quantile of sorted values [N]; `torch.quantile` refuses more than 16 million."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))].item()
