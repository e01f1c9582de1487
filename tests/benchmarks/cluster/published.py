"""Published times of reinforcement learning on GPUs, from which the simulated cluster takes its costs.

All of one experiment: Qwen2.5-Math-7B on H20, DAPO, 512 prompts x 16 responses of at most 28K tokens per step, vLLM and
FSDP2 (verl, docs/advance/fully_async.md, "Asynchronous Training on 7B Model" and "Stale Ablation Experiment").
"""

from __future__ import annotations

import math
from statistics import NormalDist

import attrs
import numpy as np

PROMPTS, RESPONSES, LONGEST = 512, 16, 28 * 1024
CELL = 128
"""GPUs of the experiment that is scaled up."""


@attrs.frozen(kw_only=True)
class Synchronous:
    """Seconds of one step in which all GPUs first generate, then train."""

    gpus: int
    step_s: float
    generation_s: float
    log_probs_s: float
    """Recomputation of the behaviour policy's log-probabilities by the trainer."""
    update_s: float

    @property
    def rest_s(self) -> float:
        """Seconds for weights, offloading and everything else."""
        return self.step_s - self.generation_s - self.log_probs_s - self.update_s


SYNCHRONOUS = {
    32: Synchronous(gpus=32, step_s=790.10, generation_s=357.41, log_probs_s=107.71, update_s=269.80),
    64: Synchronous(gpus=64, step_s=365.28, generation_s=150.72, log_probs_s=70.26, update_s=133.41),
    128: Synchronous(gpus=128, step_s=356.30, generation_s=177.85, log_probs_s=53.92, update_s=113.81),
}
ASYNCHRONOUS_STEP_S = 150.63
"""The same step on 64 GPUs that generate and 64 that train, at most half a batch ahead, with partial rollouts."""
SPEEDUP_128 = SYNCHRONOUS[CELL].step_s / ASYNCHRONOUS_STEP_S
SEPARATE_UPDATE_S = 113.16
"""Update on 64 GPUs of their own, which trains on the engine's log-probabilities."""
PUBLISH_S = 5.75
"""Full weights of 7B into the engines: 5.5 to 6.0 s (verl, docs/advance/delta_weight_sync.md)."""
TOKEN_S = 2 * 7.6e9 / (0.6 * 148e12)
"""Computing time of one token on one H20: 2 FLOP per parameter, 148 TFLOP/s in bf16 (NVIDIA), 60 % of the peak."""
READ_BYTES_PER_S = 0.8 * 4.0e12
"""Memory bandwidth of an H20 (NVIDIA: 4.0 TB/s), 80 % of the peak."""
WEIGHTS_BYTES, TOKEN_BYTES = 15.2e9, 28 * 2 * 4 * 128 * 2
"""Bytes of the model's weights, and of one token's keys and values: 28 layers, 4 heads of 128, in bf16."""
LONGEST_OVER_MEDIAN = 20
"""The longest responses exceed the median by more than 20x (ROLL Flash, arXiv 2510.11345, section 1)."""

SPEEDUPS = {"AReaL": 2.77, "verl": 1.62, "ROLL Flash": 2.72}
"""Published speedups of asynchronous over synchronous training: AReaL 1.5B on 128 GPUs, 41.0 h to 14.8 h
(blog/AReaL_v0_3.md); verl V1, 22.79 h to 14.10 h (docs/advance/v1_async_trainer.md); ROLL Flash on agentic tasks."""


SPREAD = math.log(LONGEST_OVER_MEDIAN) / NormalDist().inv_cdf(1 - 1 / (PROMPTS * RESPONSES))


@attrs.frozen(kw_only=True)
class Responses:
    """Lengths of responses in tokens: log-normal, cut at 28K."""

    median: float

    def draw(self, source: np.random.Generator, count: int) -> np.ndarray:
        """Draw some lengths."""
        return np.clip(np.ceil(source.lognormal(math.log(self.median), SPREAD, count)), 1, LONGEST)

    @property
    def decoding(self) -> Decoding:
        """Costs of decoding responses of these lengths."""
        batch = self.draw(np.random.default_rng(0), 100_000)
        mean_context = float((batch**2).sum() / batch.sum() / 2)
        return Decoding(
            fixed_s=WEIGHTS_BYTES / READ_BYTES_PER_S, each_s=TOKEN_S + mean_context * TOKEN_BYTES / READ_BYTES_PER_S
        )

    def generation_s(self, gpus: int, *, batches: int = 8) -> float:
        """Return the mean time in which some GPUs generate a whole batch that they begin at once."""
        decoding, source = self.decoding, np.random.default_rng(0)
        return float(
            np.mean(
                [
                    max(
                        decoding.fixed_s * share.max() + decoding.each_s * share.sum()
                        for share in (batch[first::gpus] for first in range(gpus))
                    )
                    for batch in (self.draw(source, PROMPTS * RESPONSES) for _ in range(batches))
                ]
            )
        )


@attrs.frozen(kw_only=True)
class Decoding:
    """Seconds of one decoding step of a GPU with `n` running responses: `fixed_s + n * each_s`."""

    fixed_s: float
    """Reading the weights from memory."""
    each_s: float
    """Computing one token, and reading the keys and values of the tokens before it."""


def calibrated(gpus: int = CELL) -> Responses:
    """Return the lengths with which the synchronous run on `gpus` GPUs generates for as long as it did."""
    low, high = 100.0, float(LONGEST)
    while high - low > 1:
        median = (low + high) / 2
        if Responses(median=median).generation_s(gpus) < SYNCHRONOUS[gpus].generation_s:
            low = median
        else:
            high = median
    return Responses(median=low)
