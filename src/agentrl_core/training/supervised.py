"""Train on demonstrations with a weighted loss per token; the loop behind `agentrl sft` and the warm start.

A token's weight w is its message's weight times its row's; l is its loss. Normalisers:

- `token_mean`: sum of w * l / sum of w, over all loss tokens of the update. A token of weight 2 counts like two tokens,
  and doubling all weights changes nothing.
- `seq_mean_token_mean`: mean over chats of sum of w * l / sum of w within the chat. A weight that all tokens of a chat
  share has no effect.
- `seq_mean_token_sum` and `constant`: sum of w * l, divided as without weights.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs
import torch

from agentrl_core.api.losses import LossBatch, LossCalculator, LossOutput
from agentrl_core.batching.packing import pack
from agentrl_core.errors import ConfigError, TrainingError
from agentrl_core.losses.aggregate import AggregationConfig
from agentrl_core.losses.contract import checked_output
from agentrl_core.losses.cross_entropy import CrossEntropy
from agentrl_core.training.diagnosis import NotFiniteError
from agentrl_core.training.metrics import Means
from agentrl_core.training.optimizer import Updater, adamw, set_lr

if TYPE_CHECKING:
    from agentrl_core.batching.packing import Update
    from agentrl_core.batching.samples import Sample
    from agentrl_core.training.demonstrations import Demonstrations
    from agentrl_core.training.policy import Policy

Schedule: TypeAlias = Literal["linear", "cosine", "constant"]

_LAST_LR = 0.1
"""Share of the learning rate at the end of a falling schedule."""
_SHOWN_ROWS = 8
"""Largest number of rows that a message names."""


@attrs.frozen(kw_only=True)
class TrainingPlan:
    """Schedule of a fine-tuning: number of updates, their size, and the optimizer's options."""

    steps: int
    """Number of optimizer updates."""
    batch_size: int
    """Rows per update."""
    lr: float
    schedule: Schedule = "linear"
    warmup_steps: int = 0
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    max_tokens: int = 8192
    """Largest number of token ids in one forward pass."""
    pool: int = 1
    """Number of batches whose rows are sorted by length together, so that a batch has rows of similar length."""

    def rate(self, step: int) -> float:
        """Return the learning rate of a 1-based step: a linear warm-up, times the schedule's fall to a tenth."""
        rise = min(1.0, step / max(self.warmup_steps, 1))
        done = (step - 1) / self.steps
        fallen = {"linear": done, "cosine": (1.0 - math.cos(math.pi * done)) / 2, "constant": 0.0}[self.schedule]
        return self.lr * rise * (1.0 - (1.0 - _LAST_LR) * fallen)


class SupervisedTrainer:
    """Training loop that changes a policy in place; equal weights, rows, plan and seed give equal results.

    Batches depend on rows and seed only. To resume, restore weights and optimizer and call `skip`; training then
    continues as if it had never stopped.
    """

    def __init__(
        self,
        policy: Policy,
        demonstrations: Demonstrations,
        plan: TrainingPlan,
        *,
        loss: LossCalculator | None = None,
        aggregation: AggregationConfig | None = None,
        seed: int = 0,
    ) -> None:
        calculator = CrossEntropy() if loss is None else loss
        check_supervised(calculator)
        self._policy, self._demonstrations, self._plan = policy, demonstrations, plan
        self._aggregation = AggregationConfig() if aggregation is None else aggregation
        self._updater = Updater(policy, _Weighted(calculator), self._aggregation, max_grad_norm=plan.max_grad_norm)
        self.optimizer = adamw(policy.masters, lr=plan.lr, betas=plan.betas, weight_decay=plan.weight_decay)
        rng = random.Random(seed)  # noqa: S311  # an order of demonstrations is no secret
        self._batches = batches(demonstrations, plan.batch_size, rng, pool=plan.pool)
        self._step = 0

    def skip(self, steps: int) -> None:
        """Skip the batches of steps that were taken before."""
        self._step += steps
        for _ in range(steps):
            next(self._batches)

    def step(self) -> dict[str, float]:
        """Take the next optimizer update; return its metrics.

        Raises `DataError` for a row that cannot be trained, `TrainingError` if the update is not finite.
        """
        wall = time.perf_counter()
        self._step += 1
        rows = next(self._batches)
        samples = [sample for index in rows for sample in self._demonstrations.samples(index)]
        update = weighted_update(
            samples, max_tokens=self._plan.max_tokens, config=self._aggregation, policy=self._policy
        )
        rate = self._plan.rate(self._step)
        set_lr(self.optimizer, rate)
        means = Means()
        try:
            value = self._updater.update(self.optimizer, update, means=means)
        except NotFiniteError as error:
            raise self._refusal(error) from error
        # The last loss token of a sample predicts nothing, so it is not forwarded.
        tokens = sum(sample.positions[-1] for sample in samples)
        wall = time.perf_counter() - wall
        return {f"loss/{name}": number for name, number in means.means().items()} | {
            "loss/value": value,
            "loss/lr": rate,
            "loss/tokens": float(sum(len(sample.positions) for sample in samples)),
            "batch/rows": float(len(rows)),
            "batch/tokens": float(update.tokens),
            "batch/merge_ratio": tokens / update.tokens,
            "train/epoch": self._step / math.ceil(len(self._demonstrations) / self._plan.batch_size),
            "train/tokens_per_s": tokens / max(wall, 1e-9),
            "time/step_s": wall,
        }

    def _refusal(self, error: NotFiniteError) -> TrainingError:
        """Return the error for an update that would not be finite, with the names of its rows."""
        names = self._demonstrations.names
        shown = [f"{names[index]} ({what})" for index, what in sorted(error.culprits.items())[:_SHOWN_ROWS]]
        more = len(error.culprits) - len(shown)
        return TrainingError(
            f"step {self._step}: the update would not be finite and was refused; the weights are as they were. "
            f"{'Rows' if error.alone else 'No single row causes it; the update contains'}: {', '.join(shown)}"
            f"{f' and {more} more' if more else ''}. Lower trainer.lr if earlier steps show a growing loss/grad_norm"
        )


@torch.no_grad()
def held_out_loss(policy: Policy, demonstrations: Demonstrations, *, max_tokens: int) -> float:
    """Return the mean negative log-likelihood over all tokens of all rows, weighted by the tokens' weights. Nats."""
    samples = [sample for index in range(len(demonstrations)) for sample in demonstrations.samples(index)]
    update = weighted_update(samples, max_tokens=max_tokens, config=AggregationConfig(), policy=policy)
    total = 0.0
    for batch in update.micro_batches:
        total -= float((policy.logprobs(batch)[0] * batch.advantages).sum())
    return total / float(update.denominators.tokens)


def weighted_update(samples: Sequence[Sample], *, max_tokens: int, config: AggregationConfig, policy: Policy) -> Update:
    """Pack samples whose `advantages` are token weights; the denominators count weights instead of tokens."""
    update = pack(samples, max_tokens=max_tokens, config=config, device=policy.device, merge=policy.merges)
    weights = torch.cat([batch.advantages for batch in update.micro_batches])
    sequence = torch.cat([batch.sequence for batch in update.micro_batches])
    per_sequence = torch.zeros_like(update.denominators.sequence_tokens).index_add(0, sequence, weights)
    counted = attrs.evolve(update.denominators, tokens=weights.sum(), sequence_tokens=per_sequence)
    return attrs.evolve(update, denominators=counted)


def batches(demonstrations: Demonstrations, size: int, rng: random.Random, *, pool: int = 1) -> Iterator[list[int]]:
    """Yield batches of row numbers without end; every pass over the data has a new random order."""
    while True:
        order = list(range(len(demonstrations)))
        rng.shuffle(order)
        # Rows of similar length in one batch need less padding. The batches of a pool are shuffled again, so that their
        # order does not depend on length.
        for start in range(0, len(order), size * pool):
            rows = sorted(order[start : start + size * pool], key=demonstrations.length)
            parts = [rows[first : first + size] for first in range(0, len(rows), size)]
            rng.shuffle(parts)
            yield from parts


@attrs.frozen
class _Weighted:
    """Loss whose terms are multiplied by token weights; the batch carries the weights as advantages."""

    calculator: LossCalculator

    @property
    def needs(self) -> frozenset[str]:
        return self.calculator.needs

    def loss(self, batch: LossBatch) -> LossOutput:
        """Return the calculator's loss per token [N], for an advantage of 1, times the token's weight."""
        output = checked_output(self.calculator, attrs.evolve(batch, advantages=torch.ones_like(batch.advantages)))
        return attrs.evolve(output, per_token=output.per_token * batch.advantages)


def check_supervised(calculator: LossCalculator) -> None:
    """Raise `ConfigError` for a loss that needs values of sampling, which demonstrations do not have.

    The loss is computed for two tokens whose behaviour log-probabilities are NaN; a NaN in its result shows that it
    reads them.
    """
    name = type(calculator).__name__
    advice = "a demonstration has no sampling policy, no reward and no reference; use cross_entropy"
    if missing := calculator.needs - {"entropy"}:
        raise ConfigError(f"loss: {name} needs {', '.join(sorted(missing))} logprobs; {advice}")
    ones, zeros = torch.ones(2), torch.zeros(2, dtype=torch.long)
    batch = LossBatch(
        logprobs=-ones,
        behaviour_logprobs=ones * torch.nan,
        advantages=ones,
        mask=ones,
        sequence=zeros,
        num_sequences=1,
        record=zeros,
        group=zeros,
        lag=zeros,
        entropy=ones,
    )
    try:
        output = checked_output(calculator, batch)
    except TrainingError as error:
        raise ConfigError(str(error)) from error
    if not torch.isfinite(output.per_token * output.keep).all():
        raise ConfigError(f"loss: {name} reads behaviour logprobs; {advice}")
