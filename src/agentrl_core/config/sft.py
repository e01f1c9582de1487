"""The shape of a supervised fine-tuning's config: the sections of a run that have a meaning there, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import attrs
from attrs import field, validators

from agentrl_core.config.schema import (
    Component,
    DataConfig,
    EvalConfig,
    ModelConfig,
    Must,
    PluginsConfig,
    RunConfig,
    TrainerConfig,
    filled,
    not_negative,
    positive,
    run_name,
    seed_number,
)


@attrs.frozen(kw_only=True)
class SftDataConfig:
    """Chats to learn from."""

    train: str = field(validator=filled)
    """JSONL of chats, relative to the config file: `{"messages": […], "tools": […]}`, or what `agentrl trace export`
    writes."""
    eval: Mapping[str, str] | str | None = None
    """JSONL of held-out chats, or several by name; their loss is reported."""
    train_on: Literal["all", "last"] = "all"
    """Which of a chat's assistant messages are trained, where their weight is above 0: all, or the last one only."""
    exact_ids: bool = True
    """Rows that hold token ids are trained on these very ids; false renders their messages anew, for a model with
    another tokenizer."""
    overlong: Literal["error", "drop", "truncate"] = "error"
    """What becomes of rows longer than the model's context, up to their last trained token: `error` refuses them,
    `drop` leaves them out, `truncate` cuts them there, and leaves out those with nothing trained before. The run says
    how many, and which."""


@attrs.frozen(kw_only=True)
class SftTrainerConfig:
    """Optimisation."""

    epochs: int | None = field(default=None, validator=validators.optional(positive))
    """Passes over the data; 1 where `steps` is not given either."""
    steps: int | None = field(default=None, validator=validators.optional(positive))
    """Optimizer updates, in place of `epochs`."""
    batch_size: int = field(default=16, validator=positive)
    """Chats per optimizer update."""
    lr: float | None = field(default=None, validator=validators.optional(not_negative))
    """None: 2e-5 for a model that is loaded (`model.path`), 1e-3 for one that is built from nothing (`model.use`)."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """How the rate falls after its rise: to a tenth at the last step, or not at all."""
    warmup_steps: int = field(default=5, validator=not_negative)
    """Updates over which the learning rate rises from 0."""
    betas: tuple[float, float] = field(
        default=(0.9, 0.95),
        validator=Must("two numbers from 0 to below 1", lambda value: all(0 <= beta < 1 for beta in value)),
    )
    """Decay rates of AdamW's two moments."""
    weight_decay: float = field(default=0.0, validator=not_negative)
    """AdamW's decoupled weight decay."""
    max_grad_norm: float = field(default=1.0, validator=positive)
    """A longer gradient is shortened to this norm."""
    max_tokens_per_microbatch: int = field(default=8192, validator=positive)
    """Token ids per forward; beginnings that chats share count once."""
    attention: Literal["auto", "rect", "flex", "dfs", "dense", "rows"] = "auto"
    """How chats that begin alike share a forward, as for `agentrl run`."""
    gradient_checkpointing: bool = False
    """Compute each layer again in the backward pass instead of keeping what is inside it."""
    save_steps: int = field(default=100, validator=positive)
    """Steps between checkpoints."""
    save_minutes: float = field(default=10.0, validator=positive)
    """A checkpoint is also written after the step that ends so long after the last one."""
    keep_last: int = field(default=3, validator=positive)
    """Checkpoints kept; older ones are removed."""
    threads: int = field(default=1, validator=positive)
    """Torch threads."""


@attrs.frozen(kw_only=True)
class SftEvalConfig:
    """The loss on `data.eval`."""

    every: int = field(default=50, validator=not_negative)
    """Steps between evaluations; 0: only before and after."""
    rows: int = field(default=256, validator=positive)
    """Chats of each set, the first ones of its file."""


@attrs.frozen(kw_only=True)
class SftConfig:
    """Everything that a supervised fine-tuning needs; `agentrl config show --sft` prints it with its defaults."""

    name: str = field(default="", validator=run_name)
    """Name of the run and of its folder; generated where empty."""
    seed: int = field(default=0, validator=seed_number)
    """Of everything random: order of the chats, a model built from nothing."""
    output_dir: str = field(default="runs", validator=filled)
    """Folder of the runs, relative to the working directory."""
    model: ModelConfig = field(factory=ModelConfig)
    data: SftDataConfig
    loss: Component = field(default=Component("cross_entropy"))
    """The loss, its aggregation and its corrections."""
    trainer: SftTrainerConfig = field(factory=SftTrainerConfig)
    eval: SftEvalConfig = field(factory=SftEvalConfig)
    store: Component = field(default=Component("sqlite"))
    """The store of steps: `sqlite`, one file per run."""
    trackers: tuple[Component, ...] = (Component("console"), Component("jsonl"))
    """Trackers of the run: `console` (the terminal), `jsonl` (metrics.jsonl), or a package's."""
    plugins: PluginsConfig = field(factory=PluginsConfig)


COUNTERPARTS: Mapping[type, type] = {
    SftConfig: RunConfig,
    SftDataConfig: DataConfig,
    SftTrainerConfig: TrainerConfig,
    SftEvalConfig: EvalConfig,
}
"""Section -> that of `agentrl run`, whose other options have no meaning without sampling and rewards."""
