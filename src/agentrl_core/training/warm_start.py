"""Run the warm start (`warm_start` in a config): a short fine-tuning on demonstrations before the first RL step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_core.training.default_lr import WARM_START
from agentrl_core.training.demonstrations import Demonstrations
from agentrl_core.training.supervised import SupervisedTrainer, TrainingPlan

if TYPE_CHECKING:
    from agentrl_core.config.training_sections import WarmStartConfig
    from agentrl_core.data.demonstrations import Demonstration
    from agentrl_core.training.policy import Policy

logger = logging.getLogger(__name__)

_BETAS = (0.9, 0.98)
_WEIGHT_DECAY = 0.01
"""Both were measured on the tiny policy. A short run on few demonstrations is not sensitive to them."""
_POOL = 8
"""Number of batches whose rows are sorted by length together. The results of recipes were measured with this value."""
_LOG_EVERY = 20


def warm_start(
    policy: Policy,
    rows: Sequence[Demonstration],
    config: WarmStartConfig,
    *,
    model_dir: Path,
    max_tokens: int,
    max_grad_norm: float,
    seed: int,
    after_step: Callable[[], None] = lambda: None,
) -> list[float]:
    """Train `policy` in place on `config.steps` batches of chats; return the loss of each step.

    The loss is the cross-entropy per token of the assistant's messages, at temperature 1. `after_step` is called after
    each step. Raises `DataError` for a chat that cannot be trained, `TrainingError` if an update is not finite.
    """
    demonstrations = Demonstrations(
        rows,
        model_dir=model_dir,
        stop_token_ids=policy.stop_token_ids,
        context_length=policy.context_length,
    )
    plan = TrainingPlan(
        steps=config.steps,
        batch_size=config.batch_size,
        lr=WARM_START.loaded if config.lr is None else config.lr,
        warmup_steps=config.warmup_steps,
        betas=_BETAS,
        weight_decay=_WEIGHT_DECAY,
        max_grad_norm=max_grad_norm,
        max_tokens=max_tokens,
        pool=_POOL,
    )
    trainer = SupervisedTrainer(policy, demonstrations, plan, seed=seed)
    losses = []
    for step in range(1, config.steps + 1):
        losses.append(trainer.step()["loss/value"])
        after_step()
        if step % _LOG_EVERY == 1 or step == config.steps:
            logger.info("warm start: step %d of %d, loss %.4f", step, config.steps, losses[-1])
    return losses
