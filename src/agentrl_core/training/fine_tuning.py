"""Fine-tune a policy for `agentrl sft`: load model and data, take steps, evaluate held-out rows, save checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from agentrl_core.errors import DataError
from agentrl_core.stores.files import UNNAMED
from agentrl_core.training.checkpoint import Companions, prune, restore_checkpoint, save_checkpoint
from agentrl_core.training.default_lr import SFT
from agentrl_core.training.demonstrations import Demonstrations
from agentrl_core.training.policy import Policy
from agentrl_core.training.supervised import SupervisedTrainer, TrainingPlan, held_out_loss

if TYPE_CHECKING:
    from agentrl_core.api.losses import LossCalculator
    from agentrl_core.config.sft import SftConfig
    from agentrl_core.data.demonstrations import Demonstration
    from agentrl_core.losses.aggregate import AggregationConfig
    from agentrl_core.stores.files import Writer

_SHOWN_LINES = 5
"""Largest number of a data set's lines that a notice names."""


class Tuner:
    """Fine-tuning run of one policy, in this process on the calling thread.

    The constructor converts and checks all rows; it raises `DataError` for rows that cannot be trained.
    """

    def __init__(
        self,
        *,
        model_dir: Path,
        rows: Sequence[Demonstration],
        eval_sets: Mapping[str, Sequence[Demonstration]],
        loss: LossCalculator,
        aggregation: AggregationConfig,
        config: SftConfig,
        device: torch.device | str = "cpu",
    ) -> None:
        torch.set_num_threads(config.trainer.threads)
        self._policy = Policy.load(
            model_dir,
            dtype=config.model.dtype,
            device=device,
            attention=config.trainer.attention,
            gradient_checkpointing=config.trainer.gradient_checkpointing,
        )
        self._companions, self._config = Companions.read(model_dir), config
        self._model_dir = model_dir
        self._notices: list[str] = []
        self._demonstrations = self._converted("data.train", rows)
        self._eval_sets = {
            name: self._converted(f"held-out set {name}", held_out[: config.eval.rows])
            for name, held_out in eval_sets.items()
        }
        self._loss, self._aggregation = loss, aggregation
        self._plan = _plan(config, num_rows=len(self._demonstrations))
        self._trainer = self._new_trainer()
        self._cpu_seconds = 0.0

    @property
    def steps(self) -> int:
        """Number of optimizer updates of the whole run."""
        return self._plan.steps

    @property
    def notices(self) -> Sequence[str]:
        """Messages for the user about rows that were left out or cut."""
        return self._notices

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of the calling thread in steps and evaluations so far."""
        return self._cpu_seconds

    def step(self) -> dict[str, float]:
        """Take the next optimizer update; return its metrics."""
        cpu = time.thread_time()
        metrics = self._trainer.step()
        self._cpu_seconds += time.thread_time() - cpu
        return metrics

    def held_out(self) -> dict[str, float]:
        """Return the loss per token of each held-out set, in nats."""
        cpu = time.thread_time()
        most = self._plan.max_tokens
        losses = {name: held_out_loss(self._policy, rows, max_tokens=most) for name, rows in self._eval_sets.items()}
        self._cpu_seconds += time.thread_time() - cpu
        return losses

    def before_change(self, call: Callable[[], None]) -> None:
        """Register `call` to run each time before a step changes the weights; `restore` drops it with the optimizer."""
        self._trainer.optimizer.register_step_pre_hook(lambda *_: call())

    def save(self, directory: Path, step: int, version: int, *, writer: Writer = UNNAMED) -> None:
        """Write a checkpoint to `directory` (`…/step-N`), and prune older ones beside it to `trainer.keep_last`."""
        save_checkpoint(
            directory,
            model=self._policy.model,
            masters=self._policy.masters,
            optimizer=self._trainer.optimizer,
            companions=self._companions,
            state={"step": step, "version": version, "seed": self._config.seed},
            writer=writer,
        )
        prune(directory.parent, keep=self._config.trainer.keep_last, saved=step)

    def restore(self, directory: Path) -> None:
        """Restore a checkpoint, bit by bit; the next step takes the batch that came after it."""
        self._trainer = self._new_trainer()
        state = restore_checkpoint(
            directory,
            model=self._policy.model,
            masters=self._policy.masters,
            optimizer=self._trainer.optimizer,
        )
        self._trainer.skip(int(state["step"]))

    def _new_trainer(self) -> SupervisedTrainer:
        return SupervisedTrainer(
            self._policy,
            self._demonstrations,
            self._plan,
            loss=self._loss,
            aggregation=self._aggregation,
            seed=self._config.seed,
        )

    def _converted(self, what: str, rows: Sequence[Demonstration]) -> Demonstrations:
        data, length = self._config.data, self._policy.context_length
        demonstrations = Demonstrations(
            rows,
            model_dir=self._model_dir,
            stop_token_ids=self._policy.stop_token_ids,
            context_length=length,
            train_on=data.train_on,
            exact_ids=data.exact_ids,
            overlong=data.overlong,
        )
        demonstrations.check()
        if rows and not demonstrations:
            raise DataError(
                f"{what}: each of its {len(rows)} rows is longer than the model's {length} tokens, and data.overlong: "
                f"{data.overlong} leaves none; use a model with a longer context, or shorter rows"
            )
        if names := demonstrations.dropped:
            why = "longer than" if data.overlong == "drop" else "nothing is trained within"
            self._note(what, names, len(rows), f"left out, {why} the model's {length} tokens")
        if names := demonstrations.truncated:
            self._note(what, names, len(rows), f"cut at the model's {length} tokens")
        return demonstrations

    def _note(self, what: str, names: Sequence[str], of: int, told: str) -> None:
        """Add a notice about the rows at the places `names`, each `file:line`."""
        lines = ", ".join(name.rpartition(":")[2] for name in names[:_SHOWN_LINES])
        more = len(names) - _SHOWN_LINES
        self._notices.append(
            f"{what}: {len(names)} of {of} rows {told}: line{'s' * (len(names) > 1)} {lines}"
            + f" and {more} more" * (more > 0)
        )


def _plan(config: SftConfig, *, num_rows: int) -> TrainingPlan:
    trainer = config.trainer
    return TrainingPlan(
        steps=trainer.steps or (trainer.epochs or 1) * math.ceil(num_rows / trainer.batch_size),
        batch_size=trainer.batch_size,
        lr=SFT.loaded if trainer.lr is None else trainer.lr,
        schedule=trainer.schedule,
        warmup_steps=trainer.warmup_steps,
        betas=trainer.betas,
        weight_decay=trainer.weight_decay,
        max_grad_norm=trainer.max_grad_norm,
        max_tokens=trainer.max_tokens_per_microbatch,
    )
