"""Train a policy on scored groups of records: the RL learner, one step at a time.

A step computes advantages, filters groups, packs samples into micro-batches and runs the optimizer updates. Engines get
the new weights elsewhere (`weights`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import torch

from agentrl_core.api.weights import ModuleWeights
from agentrl_core.batching.packing import pack, split_updates
from agentrl_core.batching.samples import training_samples
from agentrl_core.batching.signal import Signal, finished, training_signal
from agentrl_core.errors import ConfigError
from agentrl_core.stores.files import UNNAMED
from agentrl_core.training.checkpoint import Companions, prune, restore_checkpoint, save_checkpoint
from agentrl_core.training.default_lr import RL
from agentrl_core.training.diagnosis import Guard
from agentrl_core.training.logprob_gap import GapLimits, LogprobGap
from agentrl_core.training.metrics import Means, ratio_shares, rollout_metrics
from agentrl_core.training.offload import Offload
from agentrl_core.training.optimizer import PreStep, Updater, adamw, set_lr
from agentrl_core.training.policy import Policy
from agentrl_core.training.routing import RoutingReplay
from agentrl_core.training.warm_start import warm_start
from agentrl_core.weights.witness import NOTHING

if TYPE_CHECKING:
    from agentrl_core.api.batching import AdvantageEstimator, Credit, Filter, Shaping
    from agentrl_core.api.losses import LossCalculator
    from agentrl_core.batching.packing import MicroBatch, Update
    from agentrl_core.batching.samples import ExportStyle, Samples
    from agentrl_core.config.training_sections import TrainerConfig, WarmStartConfig
    from agentrl_core.data.demonstrations import Demonstration
    from agentrl_core.losses.aggregate import AggregationConfig
    from agentrl_core.losses.section import ProximalMethod
    from agentrl_core.stores.files import Writer
    from agentrl_core.training.logprob_gap import EnginePrecision
    from agentrl_core.types import Group

logger = logging.getLogger(__name__)

_LARGE = 50_000_000
"""Weights from which on a CPU is not faster with passes of more than `_JOINED` tokens."""
_JOINED = 1024
_PROVIDED = frozenset({"proximal", "reference", "entropy"})
"""Optional fields of `LossBatch` that the learner can compute for a loss."""


class Learner:
    """Learner of one policy, in this process on the calling thread.

    Equal weights, groups and seed give equal weights: nothing in a step is random. Log-probabilities are computed at
    the temperature that each interaction was sampled at.
    """

    def __init__(
        self,
        *,
        model_dir: Path,
        loss: LossCalculator,
        aggregation: AggregationConfig,
        advantage: AdvantageEstimator,
        credit: Credit,
        filters: Sequence[Filter],
        shaping: Sequence[Shaping] = (),
        config: TrainerConfig,
        proximal: ProximalMethod = "recompute",
        reference: Path | None = None,
        export_style: ExportStyle = "individual",
        seed: int = 0,
        dtype: str = "float32",
        engine_precision: EnginePrecision = "float32",
        device: torch.device | str = "cpu",
    ) -> None:
        missing = loss.needs - _PROVIDED
        if missing:
            raise ConfigError(
                f"loss: {type(loss).__name__} needs {', '.join(sorted(missing))}, which this learner does not compute; "
                f"it offers {', '.join(sorted(_PROVIDED))}"
            )
        torch.set_num_threads(config.threads)
        self._policy = Policy.load(
            model_dir,
            dtype=dtype,
            device=device,
            attention=config.attention,
            gradient_checkpointing=config.gradient_checkpointing,
        )
        self._model_dir, self._companions = model_dir, Companions.read(model_dir)
        self._loss, self._aggregation = loss, aggregation
        self._advantage, self._credit, self._filters = advantage, credit, tuple(filters)
        self._shaping = tuple(shaping)
        self._export_style, self._config, self._seed = export_style, config, seed
        self._engine_precision = engine_precision
        self._lr = RL.loaded if config.lr is None else config.lr
        if config.routing_replay and self._policy.recomputes:
            raise ConfigError(
                "trainer.routing_replay: the backward pass runs the model again, where its experts would not be "
                "replayed; remove trainer.gradient_checkpointing, and set trainer.attention: rows if it is dfs (which "
                "auto may choose)"
            )
        self._replay = RoutingReplay(self._policy.model) if config.routing_replay else None
        self._updater = Updater(
            self._policy,
            loss,
            aggregation,
            max_grad_norm=config.max_grad_norm,
            proximal=proximal,
            observe=ratio_shares,
        )
        self._recomputes = "proximal" in loss.needs and proximal == "recompute"
        self._reference_dir, self._dtype = reference or model_dir, dtype
        self._frozen: Policy | None = None
        self._optimizer = self._new_optimizer()
        # In main memory already, there is nothing to free.
        on_gpu = torch.device(device).type == "cuda"
        self._offload = Offload(device) if on_gpu and config.offload != "none" else None
        self._cpu_seconds = 0.0
        self.fidelity = NOTHING
        """Count of trained tokens in all steps so far, and of those that are exactly what the engine sampled."""
        self.left_out: Mapping[str, str] = {}
        """Id of a record that the last step left out -> its value that was not finite (`trainer.non_finite: skip`)."""

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of the calling thread in steps and warm start so far."""
        return self._cpu_seconds

    @property
    def joined_tokens(self) -> int:
        """Largest number of tokens of a forward pass that groups share; a group alone may have more.

        On a CPU, many tokens of a large model take memory for nothing; fewer than this would be slower.
        """
        most = self._config.max_tokens_per_microbatch
        weights = sum(weight.numel() for weight in self._policy.model.parameters())
        on_cpu = torch.device(self._policy.device).type == "cpu"
        return min(_JOINED, most) if on_cpu and weights >= _LARGE else most

    @property
    def refers(self) -> bool:
        """True if the loss reads log-probabilities of a reference policy."""
        return "reference" in self._loss.needs

    def training_signal(self, groups: Sequence[Group]) -> Signal:
        """Compute the advantages of complete groups and filter the groups. Call it once per group."""
        cpu = time.thread_time()
        signal = training_signal(
            groups, credit=self._credit, advantage=self._advantage, filters=self._filters, shaping=self._shaping
        )
        self._cpu_seconds += time.thread_time() - cpu
        return signal

    def step(self, groups: Sequence[Group] | Signal, *, step: int, version: int) -> dict[str, float]:
        """Train on groups, or on the signal that `training_signal` returned for them; return the step's metrics.

        `step` is 1-based and sets the learning rate. `version` is the policy version of the current weights. If no
        group has a signal, nothing is updated and the metrics say so. Raises `TrainingError`, before the update, if
        engine and learner disagree about a token of lag 0, or the update would not be finite; with
        `trainer.non_finite: skip` the bad records are left out instead.
        """
        wall = time.perf_counter()
        self.reclaim()
        self.left_out = {}
        signal = groups if isinstance(groups, Signal) else self.training_signal(groups)
        cpu = time.thread_time()
        signal = finished(signal, advantage=self._advantage, shaping=self._shaping)
        samples = training_samples(signal.groups, signal.advantages, style=self._export_style)
        lr = self._lr * min(1.0, step / max(self._config.warmup_steps, 1))
        metrics = dict(rollout_metrics(signal.sampled, signal, version=version)) | {"loss/lr": lr}
        if samples.samples:
            self.fidelity += samples.fidelity
            set_lr(self._optimizer, lr)
            metrics |= self._train(samples, version)
        cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
        self._cpu_seconds += cpu
        tokens = metrics.get("loss/tokens", 0.0)
        return metrics | {
            "time/train_s": wall,
            "time/train_cpu_s": cpu,
            "loss/tokens_per_s": tokens / max(wall, 1e-9),
            "loss/tokens_per_cpu_s": tokens / max(cpu, 1e-9),
        }

    def _train(self, samples: Samples, version: int) -> dict[str, float]:
        """Run the step's optimizer updates (`trainer.updates`), each on its share of the samples; return metrics."""
        updates = [
            pack(
                share,
                max_tokens=self._config.max_tokens_per_microbatch,
                config=self._aggregation,
                device=self._policy.device,
                merge=self._policy.merges,
                whole_sequences=getattr(self._loss, "whole_sequences", False),
                joined_tokens=self.joined_tokens,
            )
            for share in split_updates(samples.samples, self._config.updates)
        ]
        # All of it before the first update: later the policy before the step is gone.
        before = [self._before(update, first=update is updates[0]) for update in updates]
        gap = LogprobGap(
            samples,
            version,
            limits=GapLimits.of(
                self._config.max_logprob_gap, learner_is_precise=self._policy.precise, engine=self._engine_precision
            ),
            update=updates[0],
        )
        guard = Guard(self._config.non_finite, samples.records)
        means = Means()
        for update, computed in zip(updates, before, strict=True):
            first = update is updates[0]
            apply = partial(
                self._updater.update,
                self._optimizer,
                means=means,
                version=version,
                inspect=gap.inspect if first else None,
                names=samples.records,
            )
            value = guard.attempt(update, computed, apply, again=gap.begin if first else None)
            if value is not None:
                means.add("value", value)
        self.left_out = guard.left_out
        forwarded = sum(update.tokens for update in updates)
        return {f"loss/{name}": value for name, value in means.means().items()} | {
            **gap.metrics(),
            "loss/tokens": float(guard.trained_tokens),
            "batch/rows": float(len(samples.samples)),
            "batch/sequences": float(samples.num_sequences),
            "fidelity/exact_share": samples.fidelity.share,
            "batch/tokens": float(forwarded),
            "batch/merge_ratio": sum(update.call_tokens for update in updates) / forwarded,
            "batch/records_not_finite": float(len(guard.left_out)),
            "batch/updates_skipped": float(guard.skipped_updates),
        }

    @torch.no_grad()
    def _before(self, update: Update, *, first: bool) -> list[PreStep]:
        """Compute each micro-batch's values under the policy before the step, and under the reference policy.

        The first update needs none of the former: it runs on the policy before the step itself.
        """
        reference = self._reference() if self.refers else None
        return [
            attrs.evolve(
                PreStep() if first else self._looked_at(batch),
                reference=None if reference is None else reference.logprobs(batch)[0],
            )
            for batch in update.micro_batches
        ]

    def _looked_at(self, batch: MicroBatch) -> PreStep:
        """Compute proximal log-probabilities and expert choices of a micro-batch, as far as they are configured."""
        if self._replay is None:
            return PreStep(proximal=self._policy.logprobs(batch)[0] if self._recomputes else None)
        with self._replay.recording() as routes:
            logprobs, _ = self._policy.logprobs(batch)
        return PreStep(proximal=logprobs if self._recomputes else None, routes=routes)

    def _reference(self) -> Policy:
        """Return the frozen reference policy, loaded on first use.

        Raises `ConfigError` if its vocabulary differs in size from the policy's.
        """
        if self._frozen is None:
            self._frozen = Policy.load(
                self._reference_dir, dtype=self._dtype, device=self._policy.device, attention=self._config.attention
            )
            self._frozen.model.requires_grad_(False)
            sizes = [int(policy.model.config.vocab_size) for policy in (self._frozen, self._policy)]
            if sizes[0] != sizes[1]:
                raise ConfigError(
                    f"loss.reference: the model in {self._reference_dir} has a vocabulary of {sizes[0]} tokens, the "
                    f"policy one of {sizes[1]}; use a model with the policy's tokenizer"
                )
        return self._frozen

    def warm_start(
        self, rows: Sequence[Demonstration], config: WarmStartConfig, *, after_step: Callable[[], None] = lambda: None
    ) -> list[float]:
        """Fine-tune on demonstrations before the first RL step; return the loss of each fine-tuning step.

        `after_step` is called after each of them. The RL steps start with a new optimizer.
        """
        cpu = time.thread_time()
        losses = warm_start(
            self._policy,
            rows,
            config,
            model_dir=self._model_dir,
            max_tokens=self._config.max_tokens_per_microbatch,
            max_grad_norm=self._config.max_grad_norm,
            seed=self._seed,
            after_step=after_step,
        )
        self._optimizer = self._new_optimizer()
        self._cpu_seconds += time.thread_time() - cpu
        return losses

    def release(self) -> None:
        """Free the gradients, and move what `trainer.offload` names to main memory, until the next step needs it."""
        self._policy.masters.zero_grad()
        if self._offload is not None:
            self._offload.release(self._idle_tensors())

    def reclaim(self) -> None:
        """Move what was released back; `step` calls it, and a caller may do so earlier."""
        if self._offload is not None:
            self._offload.reclaim()

    def _idle_tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that `trainer.offload` names; a single number, such as Adam's count of steps, stays."""
        for state in self._optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor) and value.ndim)
        yield from self._policy.masters.copies.values()
        if self._config.offload == "all":
            for policy in filter(None, (self._policy, self._frozen)):
                yield from policy.model.parameters()

    @property
    def device(self) -> str:
        """Device that the policy is trained on."""
        return self._policy.device

    def weights(self) -> ModuleWeights:
        """Return the live weights; a step changes them in place."""
        return ModuleWeights(self._policy.model)

    def before_change(self, call: Callable[[], None]) -> None:
        """Register `call` to run each time before a step changes the weights; `warm_start` drops it."""
        self._optimizer.register_step_pre_hook(lambda *_: call())

    def save(self, directory: Path, step: int, version: int, *, writer: Writer = UNNAMED) -> None:
        """Write a checkpoint to `directory` (`…/step-N`), and prune older ones beside it to `trainer.keep_last`."""
        save_checkpoint(
            directory,
            model=self._policy.model,
            masters=self._policy.masters,
            optimizer=self._optimizer,
            companions=self._companions,
            state={"step": step, "version": version, "seed": self._seed},
            writer=writer,
        )
        prune(directory.parent, keep=self._config.keep_last, saved=step)

    def restore(self, directory: Path) -> tuple[int, int]:
        """Restore a checkpoint, bit by bit; return its step and version."""
        state = restore_checkpoint(
            directory, model=self._policy.model, masters=self._policy.masters, optimizer=self._optimizer
        )
        return int(state["step"]), int(state["version"])

    def _new_optimizer(self) -> torch.optim.AdamW:
        return adamw(
            self._policy.masters,
            lr=self._lr,
            betas=self._config.betas,
            weight_decay=self._config.weight_decay,
        )
