"""Sections of the config that say what is trained and how: model, warm start, trainer, evaluation and weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs
from attrs import field, validators

from agentrl_core.config.component import Component
from agentrl_core.config.validators import Must, device_name, filled, not_negative, positive, probability_mass, without


@attrs.frozen(kw_only=True)
class ModelConfig:
    """Source of the policy: `path` of a Hugging Face model directory, or `use` of a registered builder."""

    path: str | None = None
    """Local model directory with weights, tokenizer.json and a chat template."""
    use: str | None = None
    """Registry name of a model builder: `tiny` makes a new model, `smollm2-135m` writes a pretrained one."""
    options: Mapping[str, Any] = field(factory=dict, validator=without("path", "use", "dtype"))
    """Options of the builder, written next to `use`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type that learner and embedded engine compute in. With `bfloat16` the learner also keeps fp32 master weights,
    which the optimizer changes and checkpoints restore; gradients and optimizer state are fp32 in both."""


@attrs.frozen(kw_only=True)
class WarmStartConfig:
    """Supervised fine-tuning before reinforcement learning, in the same run."""

    data: str = field(validator=filled)
    """JSONL file of demonstrations: `{"messages": […], "tools": […]}`; assistant messages are trained."""
    steps: int = field(default=100, validator=positive)
    """Number of optimizer updates."""
    batch_size: int = field(default=24, validator=positive)
    """Number of demonstrations per update."""
    lr: float | None = field(default=None, validator=validators.optional(positive))
    """Learning rate. None: 2e-5 for a pretrained model, 3e-3 for one that its builder makes from nothing."""
    warmup_steps: int = field(default=20, validator=not_negative)
    """Number of first updates over which the learning rate rises from 0."""


@attrs.frozen(kw_only=True)
class TrainerConfig:
    """Optimization and checkpoints."""

    steps: int = field(default=100, validator=not_negative)
    """Number of optimizer steps of the run. 0: play `data.eval` once with the weights at the start, and train nothing,
    not even a warm start."""
    lr: float | None = field(default=None, validator=validators.optional(not_negative))
    """Learning rate of AdamW. None: 1e-6 for a pretrained model (`model.path`, and builders such as `smollm2-135m`),
    4e-4 for one built from nothing (`tiny`); `agentrl config show` prints which."""
    warmup_steps: int = field(default=5, validator=not_negative)
    """Number of first steps over which the learning rate rises from 0."""
    betas: tuple[float, float] = field(
        default=(0.9, 0.95),
        validator=Must("two numbers from 0 to below 1", lambda value: all(0 <= beta < 1 for beta in value)),
    )
    """Decay rates of AdamW's two moments."""
    weight_decay: float = field(default=0.0, validator=not_negative)
    """AdamW's decoupled weight decay."""
    max_grad_norm: float = field(default=1.0, validator=positive)
    """Norm to which longer gradients are clipped."""
    updates: int = field(default=1, validator=positive)
    """Number of optimizer updates per step, each on its share of the step's groups."""
    max_tokens_per_microbatch: int = field(default=8192, validator=positive)
    """Largest number of tokens per forward pass; shared prefixes count once. A longer record gets a pass of its own.
    For a model of 50 million weights or more on a CPU, groups share passes of at most 1024 tokens, because larger ones
    take memory and are no faster; a single group may fill more."""
    attention: Literal["auto", "rect", "flex", "dfs", "dense", "rows"] = "auto"
    """Attention over records that share a prefix, which is then computed once; `auto` uses the fastest that fits the
    model. `rect`: one flash-attention call per node of the prefix trie, on CPU. `flex`: one kernel, on CUDA. `dfs`:
    node by node with the model's KV cache, with a second forward pass for the backward pass; works with any model that
    can continue from its cache, and needs the least memory. `dense`: one call with a T x T mask. `rows`: each row
    alone, nothing is shared."""
    gradient_checkpointing: bool = False
    """Recomputes each layer's activations in the backward pass instead of keeping them: less memory, a third more
    time."""
    save_steps: int = field(default=20, validator=positive)
    """Number of steps between checkpoints."""
    save_minutes: float = field(default=10.0, validator=positive)
    """Time in minutes after which the next step writes a checkpoint in any case."""
    keep_last: int = field(default=3, validator=positive)
    """Number of checkpoints to keep; older ones are deleted."""
    max_logprob_gap: float | None = field(default=None, validator=validators.optional(positive))
    """Largest |learner - engine| difference of a token's log-probability, among tokens of lag 0, which both compute
    with the same weights; above it the run stops. None: 0.001 where both compute in float32. Where one of them computes
    in bfloat16, single tokens differ by up to 1; there the mean may not exceed 0.15, nor the 99th percentile 0.8."""
    stop_at_reward: float | None = None
    """Mean training reward over the last 3 steps at which the run ends early; None: never."""
    max_steps_without_signal: int = field(default=10, validator=positive)
    """Number of steps in a row with nothing to learn from (equal rewards within every group) that stops the run."""
    non_finite: Literal["stop", "skip"] = "stop"
    """Treatment of an advantage, a log-probability, a loss or a gradient that is NaN or infinite; it never reaches the
    weights. `stop` ends the run and names the records. `skip` makes the update without these records' loss terms, or
    skips it if no record is at fault or none is left."""
    max_steps_not_finite: int = field(default=5, validator=positive)
    """With `non_finite: skip`: number of steps in a row with something left out that stops the run."""
    routing_replay: bool = False
    """For mixture-of-experts models with several updates per step: every update routes each token to the experts that
    the weights before the step chose. The gate's weights are still computed and trained as usual."""
    device: str = field(default="auto", validator=device_name)
    """Device that the learner trains on: `cpu`, `cuda`, `cuda:N`; `auto` uses a GPU if there is one."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """Part of the learner that is in pinned main memory while the run samples, to leave a GPU that both use to the
    engine: `optimizer` moves the optimizer's state and bf16's master weights, `all` also the weights of policy and
    reference policy. Each step moves it there and back; on a CPU there is nothing to move. With either, an embedded
    engine on the learner's device frees its keys and values while a step is trained, unless it samples meanwhile
    (max_head_offpolicyness above 0)."""
    threads: int = field(default=1, validator=positive)
    """Number of the learner's torch threads, at most the cores of this machine; the engine's threads are subtracted if
    both are busy at once (max_head_offpolicyness above 0). On a machine that others use too, 1 is as fast."""


@attrs.frozen(kw_only=True)
class EvalConfig:
    """Evaluation on `data.eval`."""

    every: int = field(default=10, validator=not_negative)
    """Number of steps between evaluations; 0: only before and after training."""
    tasks: int = field(default=256, validator=positive)
    """Number of tasks per set in the evaluations before and after training."""
    tasks_during: int = field(default=64, validator=positive)
    """Number of tasks per set in the evaluations during training."""
    temperature: float = field(default=1.0, validator=not_negative)
    """Temperature in evaluations, if the agent asks for none."""
    top_p: float = field(default=1.0, validator=probability_mass)
    """Nucleus sampling in evaluations, if the agent asks for none."""
    top_k: int = field(default=0, validator=not_negative)
    """Number of likeliest tokens that are sampled from in evaluations, if the agent asks for none; 0: all."""


@attrs.frozen(kw_only=True)
class WeightsConfig:
    """Way of the policy's weights to servers; the embedded engine of `agentrl run` copies them within its process."""

    publish: Component = Component("disk")
    """`disk`: a whole model directory for each version. `delta`: only what changed since the version before, with a
    whole one every `full_every` versions (20), computed on `threads` threads (1); for `agentrl train` and `serve`.
    `nccl` and `ipc`: from GPU to GPU, between machines or on one, for `agentrl run` with model servers."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Type of published weights. None: `model.dtype`. With `bfloat16` a float32 model needs half the bytes, and a delta
    a tenth: set it where the servers compute in bfloat16."""
    local: str | None = field(default=None, validator=validators.optional(filled))
    """Folder on this machine's disk, or in its memory (`/dev/shm`), for the whole copies that deltas are computed from
    and applied to, two at a time. None: the system's temporary folder."""
    place: str | None = field(default=None, validator=validators.optional(filled))
    """Folder that trainer and servers share, such as one of a network file system; each run has its own folder in it.
    None: `weights` in the run's folder."""
