"""Supervised fine-tuning: weighted cross-entropy on demonstrations, one batch of rows per optimizer update.

The weight of a token is its message's times its row's. Where losses are averaged over tokens, weights are counted as
tokens are: `token_mean` is sum(w * l) / sum(w) over the whole update, so a token of weight 2 counts as one that stands
there twice, and doubling all weights changes nothing. `seq_mean_token_mean` takes that mean in each chat, where a
weight that all of its tokens share plays no part. `seq_mean_token_sum` and `constant` sum w * l over as many sequences
as without weights.
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
from agentrl_core.losses.checked import made_by
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
"""Share of the learning rate that a falling schedule ends at."""
_SHOWN_ROWS = 8
"""Rows that a message names."""


@attrs.frozen(kw_only=True)
class Plan:
    """How many updates, of what, at which rate."""

    steps: int
    batch_size: int
    """Rows per update."""
    lr: float
    schedule: Schedule = "linear"
    warmup_steps: int = 0
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    max_tokens: int = 8192
    """Token ids per forward."""
    pool: int = 1
    """Batches whose rows are sorted by length together, so that each has rows of about one length."""

    def rate(self, step: int) -> float:
        """Learning rate of a step, from 1 on: a linear rise, times the schedule's fall to a tenth."""
        rise = min(1.0, step / max(self.warmup_steps, 1))
        done = (step - 1) / self.steps
        fallen = {"linear": done, "cosine": (1.0 - math.cos(math.pi * done)) / 2, "constant": 0.0}[self.schedule]
        return self.lr * rise * (1.0 - (1.0 - _LAST_LR) * fallen)


class SupervisedTrainer:
    """Trains a policy in place; equal weights, rows, plan and seed give equal weights.

    The batches follow from rows and seed alone, so that one that skips the steps that were done, with the optimizer's
    state of then, goes on as if it had never stopped.
    """

    def __init__(
        self,
        policy: Policy,
        demonstrations: Demonstrations,
        plan: Plan,
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
        self.optimizer = adamw(policy.model, lr=plan.lr, betas=plan.betas, weight_decay=plan.weight_decay)
        rng = random.Random(seed)  # noqa: S311  # an order of demonstrations is no secret
        self._batches = batches(demonstrations, plan.batch_size, rng, pool=plan.pool)
        self._step = 0

    def skip(self, steps: int) -> None:
        """Leave out steps that were taken before."""
        self._step += steps
        for _ in range(steps):
            next(self._batches)

    def step(self) -> dict[str, float]:
        """Take the next optimizer update; returns its metrics.

        Raises `DataError` for a row that cannot be trained, and `TrainingError` where the update is not finite.
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
        tokens = sum(sample.positions[-1] for sample in samples)  # nothing is predicted from the last one
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
        """Name the rows behind an update that would not be finite."""
        names = self._demonstrations.names
        shown = [f"{names[index]} ({what})" for index, what in sorted(error.culprits.items())[:_SHOWN_ROWS]]
        more = len(error.culprits) - len(shown)
        return TrainingError(
            f"step {self._step}: the update would not be finite and was refused; the weights are as they were. "
            f"{'Rows' if error.alone else 'No single row is to blame; those in it'}: {', '.join(shown)}"
            f"{f' and {more} more' if more else ''}. Lower trainer.lr if earlier steps show a growing loss/grad_norm"
        )


@torch.no_grad()
def held_out_loss(policy: Policy, demonstrations: Demonstrations, *, max_tokens: int) -> float:
    """Mean negative log-likelihood per token of all rows, by the tokens' weights. Nats."""
    samples = [sample for index in range(len(demonstrations)) for sample in demonstrations.samples(index)]
    update = weighted_update(samples, max_tokens=max_tokens, config=AggregationConfig(), policy=policy)
    total = 0.0
    for batch in update.micro_batches:
        total -= float((policy.logprobs(batch)[0] * batch.advantages).sum())
    return total / float(update.denominators.tokens)


def weighted_update(samples: Sequence[Sample], *, max_tokens: int, config: AggregationConfig, policy: Policy) -> Update:
    """Pack samples whose advantages are their tokens' weights; the denominators count weights in place of tokens."""
    update = pack(samples, max_tokens=max_tokens, config=config, device=policy.device, merge=policy.merges)
    weights = torch.cat([batch.advantages for batch in update.micro_batches])
    sequence = torch.cat([batch.sequence for batch in update.micro_batches])
    per_sequence = torch.zeros_like(update.denominators.sequence_tokens).index_add(0, sequence, weights)
    counted = attrs.evolve(update.denominators, tokens=weights.sum(), sequence_tokens=per_sequence)
    return attrs.evolve(update, denominators=counted)


def batches(demonstrations: Demonstrations, size: int, rng: random.Random, *, pool: int = 1) -> Iterator[list[int]]:
    """Endless batches of row numbers; every pass over the data is in a new random order."""
    while True:
        order = list(range(len(demonstrations)))
        rng.shuffle(order)
        for start in range(0, len(order), size * pool):
            rows = sorted(order[start : start + size * pool], key=demonstrations.length)
            parts = [rows[first : first + size] for first in range(0, len(rows), size)]
            rng.shuffle(parts)
            yield from parts


@attrs.frozen
class _Weighted:
    """A loss on tokens with weights, which come in the place of advantages."""

    calculator: LossCalculator

    @property
    def needs(self) -> frozenset[str]:
        return self.calculator.needs

    def loss(self, batch: LossBatch) -> LossOutput:
        """The calculator's loss per token, times the token's weight."""
        output = made_by(self.calculator, attrs.evolve(batch, advantages=torch.ones_like(batch.advantages)))
        return attrs.evolve(output, per_token=output.per_token * batch.advantages)


def check_supervised(calculator: LossCalculator) -> None:
    """Refuse, by `ConfigError`, a loss that cannot do without what sampling leaves.

    It is asked about two tokens whose behaviour logprobs are not numbers, which shows whether it reads them.
    """
    name = type(calculator).__name__
    advice = "a demonstration has no sampling policy, no reward and no reference; use cross_entropy"
    if missing := calculator.needs - {"entropy"}:
        raise ConfigError(f"loss: {name} needs {', '.join(sorted(missing))} log-probs; {advice}")
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
        output = made_by(calculator, batch)
    except TrainingError as error:
        raise ConfigError(str(error)) from error
    if not torch.isfinite(output.per_token * output.keep).all():
        raise ConfigError(f"loss: {name} compares with the logprobs of sampling; {advice}")
