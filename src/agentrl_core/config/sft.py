"""Options of `agentrl sft`: the sections of a run's config without those for sampling and rewards.

Like `schema.py`, the source of `cookbook/config.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import attrs
from attrs import field, validators

from agentrl_core.config.component import Component
from agentrl_core.config.schema import DataConfig, PluginsConfig, RunConfig
from agentrl_core.config.training_sections import EvalConfig, ModelConfig, TrainerConfig
from agentrl_core.config.validators import Must, device_name, filled, not_negative, positive, run_name, seed_number


@attrs.frozen(kw_only=True)
class SftDataConfig:
    """Chats to train and evaluate on."""

    train: str = field(validator=filled)
    """JSONL file of chats, relative to the config file: `{"messages": […], "tools": […]}`, or rows written by
    `agentrl trace export`."""
    eval: Mapping[str, str] | str | None = None
    """JSONL file of held-out chats, or several files by name; their loss is reported."""
    train_on: Literal["all", "last"] = "all"
    """Assistant messages of a chat that are trained: all, or only the last one. Messages of weight 0 never are."""
    exact_ids: bool = True
    """Trains rows that contain token ids on exactly these ids; `false` re-renders their messages, for a model with
    another tokenizer."""
    overlong: Literal["error", "drop", "truncate"] = "error"
    """Treatment of rows whose last trained token is beyond the model's context: `error` refuses them, `drop` leaves
    them out, `truncate` cuts them at the context's end and leaves out those with no trained token before it. The run
    reports how many rows, and which."""


@attrs.frozen(kw_only=True)
class SftTrainerConfig:
    """Optimization and checkpoints."""

    epochs: int | None = field(default=None, validator=validators.optional(positive))
    """Number of passes over the data; 1 if `steps` is not set either."""
    steps: int | None = field(default=None, validator=validators.optional(positive))
    """Number of optimizer updates, instead of `epochs`."""
    batch_size: int = field(default=16, validator=positive)
    """Number of chats per optimizer update."""
    lr: float | None = field(default=None, validator=validators.optional(not_negative))
    """Learning rate. None: 2e-5 for a pretrained model, 1e-3 for one that its builder makes from nothing."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """Learning rate after the warm-up: `linear` and `cosine` fall to a tenth at the last step, `constant` stays."""
    warmup_steps: int = field(default=5, validator=not_negative)
    """Number of first updates over which the learning rate rises from 0."""
    betas: tuple[float, float] = field(
        default=(0.9, 0.95),
        validator=Must("two numbers from 0 to below 1", lambda value: all(0 <= beta < 1 for beta in value)),
    )
    """Decay rates of AdamW's two moments."""
    weight_decay: float = field(default=0.0, validator=not_negative)
    """AdamW's decoupled weight decay."""
    max_grad_norm: float = field(default=1.0, validator=positive)
    """Norm to which longer gradients are clipped."""
    max_tokens_per_microbatch: int = field(default=8192, validator=positive)
    """Largest number of tokens per forward pass; shared prefixes count once."""
    attention: Literal["auto", "rect", "flex", "dfs", "dense", "rows"] = "auto"
    """Attention over chats that share a prefix, as for `agentrl run`."""
    gradient_checkpointing: bool = False
    """Recomputes each layer's activations in the backward pass instead of keeping them: less memory, more time."""
    save_steps: int = field(default=100, validator=positive)
    """Number of steps between checkpoints."""
    save_minutes: float = field(default=10.0, validator=positive)
    """Time in minutes after which the next step writes a checkpoint in any case."""
    keep_last: int = field(default=3, validator=positive)
    """Number of checkpoints to keep; older ones are deleted."""
    device: str = field(default="auto", validator=device_name)
    """Device to train on: `cpu`, `cuda`, `cuda:N`; `auto` uses a GPU if there is one."""
    threads: int = field(default=1, validator=positive)
    """Number of torch threads."""


@attrs.frozen(kw_only=True)
class SftEvalConfig:
    """Loss on the held-out chats of `data.eval`."""

    every: int = field(default=50, validator=not_negative)
    """Number of steps between evaluations; 0: only before and after training."""
    rows: int = field(default=256, validator=positive)
    """Number of chats per set: the first ones of its file."""


@attrs.frozen(kw_only=True)
class SftConfig:
    """Options of one run of `agentrl sft`; `agentrl config show --sft` prints them with their defaults."""

    name: str = field(default="", validator=run_name)
    """Name of the run and of its folder; empty: a generated name."""
    seed: int = field(default=0, validator=seed_number)
    """Seed of everything random: order of the chats, a model built from nothing."""
    output_dir: str = field(default="runs", validator=filled)
    """Folder that holds the run directories, relative to the working directory."""
    model: ModelConfig = field(factory=ModelConfig)
    data: SftDataConfig
    loss: Component = field(default=Component("cross_entropy"))
    """Loss to minimize, with its aggregation and corrections."""
    trainer: SftTrainerConfig = field(factory=SftTrainerConfig)
    eval: SftEvalConfig = field(factory=SftEvalConfig)
    store: Component = field(default=Component("sqlite"))
    """Store of steps: `sqlite`, one file per run."""
    trackers: tuple[Component, ...] = (Component("console"), Component("jsonl"))
    """Outputs for metrics: `console` (the terminal), `jsonl` (metrics.jsonl), or a package's."""
    plugins: PluginsConfig = field(factory=PluginsConfig)


COUNTERPARTS: Mapping[type, type] = {
    SftConfig: RunConfig,
    SftDataConfig: DataConfig,
    SftTrainerConfig: TrainerConfig,
    SftEvalConfig: EvalConfig,
}
"""Section of `agentrl run` for each section of `agentrl sft`; its other options have no meaning without sampling."""
