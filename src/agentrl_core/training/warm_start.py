"""The warm start: a short supervised fine-tuning on demonstrations, before reinforcement learning."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_core.batching.packing import pack
from agentrl_core.losses.aggregate import AggregationConfig
from agentrl_core.losses.cross_entropy import CrossEntropy
from agentrl_core.training.demonstrations import Demonstrations
from agentrl_core.training.metrics import Means
from agentrl_core.training.optimizer import Updater, adamw, set_lr
from agentrl_core.training.policy import Policy

if TYPE_CHECKING:
    from agentrl_core.config.schema import WarmStartConfig

logger = logging.getLogger(__name__)

_BETAS = (0.9, 0.98)
_WEIGHT_DECAY = 0.01
"""Both as measured on the tiny policy; a short run on few demonstrations is not sensitive to them."""
_LAST_LR = 0.1
"""Share of the learning rate that the linear decay ends at."""
_POOL = 8
"""Batches whose demonstrations are sorted by length together, which leaves little padding in each."""
_LOG_EVERY = 20


def warm_start(
    policy: Policy,
    rows: Sequence[Mapping[str, Any]],
    config: WarmStartConfig,
    *,
    model_dir: Path,
    max_tokens: int,
    max_grad_norm: float,
    seed: int,
) -> list[float]:
    """Train `policy` in place on `config.steps` batches of chats; returns the loss of each step.

    Cross-entropy per token of the assistant's messages, at temperature 1. Raises `DataError` for a chat that
    cannot be trained, and `TrainingError` where an update is not finite.
    """
    demonstrations = Demonstrations(
        rows,
        model_dir=model_dir,
        stop_token_ids=policy.stop_token_ids,
        context_length=policy.context_length,
    )
    optimizer = adamw(policy.model, lr=config.lr, betas=_BETAS, weight_decay=_WEIGHT_DECAY)
    aggregation = AggregationConfig(aggregation="token_mean")
    updater = Updater(Policy(policy.model), CrossEntropy(), aggregation, max_grad_norm=max_grad_norm)
    rng = random.Random(seed)  # noqa: S311  # an order of demonstrations is no secret
    batches = _batches(demonstrations, config.batch_size, rng)
    losses = []
    for step in range(config.steps):
        set_lr(optimizer, config.lr * _schedule(step, config))
        samples = [sample for index in next(batches) for sample in demonstrations.samples(index)]
        update = pack(samples, max_tokens=max_tokens, config=aggregation, device=policy.device)
        losses.append(updater.update(optimizer, update, means=Means()))
        if step % _LOG_EVERY == 0 or step == config.steps - 1:
            logger.info("warm start: step %d of %d, loss %.4f", step + 1, config.steps, losses[-1])
    return losses


def _schedule(step: int, config: WarmStartConfig) -> float:
    """Share of the learning rate: a linear rise, then a linear fall to a tenth."""
    rise = min(1.0, (step + 1) / max(config.warmup_steps, 1))
    return rise * (1.0 - (1.0 - _LAST_LR) * step / config.steps)


def _batches(demonstrations: Demonstrations, size: int, rng: random.Random) -> Iterator[list[int]]:
    """Endless batches of demonstration numbers; every pass over the data is in a new random order."""
    while True:
        order = list(range(len(demonstrations)))
        rng.shuffle(order)
        for start in range(0, len(order), size * _POOL):
            pool = sorted(order[start : start + size * _POOL], key=demonstrations.length)
            parts = [pool[first : first + size] for first in range(0, len(pool), size)]
            rng.shuffle(parts)
            yield from parts
