"""Options of `agentrl run`: one attrs class per section of the config, each option with default, limits and text.

The larger sections are in `sampling_sections.py` and `training_sections.py`. `cookbook/config.md` is generated from
the docstrings of all three.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_type_hints

import attrs
from attrs import field, validators

from agentrl_core.config.component import AUTO, Component
from agentrl_core.config.sampling_sections import GatewayConfig, RolloutConfig, SamplingConfig, ToolsConfig
from agentrl_core.config.training_sections import EvalConfig, ModelConfig, TrainerConfig, WarmStartConfig, WeightsConfig
from agentrl_core.config.validators import filled, limit, run_name, seed_number


@attrs.frozen(kw_only=True)
class DataConfig:
    """Tasks to train and evaluate on."""

    train: str | Component | None = field(default=None, validator=validators.optional(filled))
    """JSONL file of tasks, relative to the config file, or the name of a registered data set, with its options where it
    has some: `{use: NAME, …}`. Optional with `rollout.agent.mode: online`, where agents may bring their own tasks."""
    eval: Component | Mapping[str, str | Component] | str | None = None
    """JSONL file or data set of held-out tasks, or several by name: `{heldout: a.jsonl, seen: {use: NAME, …}}`."""
    default_scorer: str | None = field(default=None, validator=validators.optional(filled))
    """Scorer of tasks that name none, used if the workflow returns no reward. None: `agentcpm`, if agentrl-judge is
    installed. A scorer that is named here must be installed."""
    allow_code: bool = False
    """Allows a task's `scorer` to be code, `file.py:name` or `module:name`, which the run then executes. Without it, a
    task may name only registered scorers and those defined under `scorers`."""
    shuffle: bool = True
    """Goes through the tasks in a new random order on each pass."""

    @property
    def sources(self) -> Mapping[str, Component]:
        """The sources of all task sets, by their dotted keys `data.train`, `data.eval` and `data.eval.NAME`.

        A source's `use` is a file or the name of a data set.
        """
        sets = {"data.train": self.train}
        if isinstance(self.eval, Mapping):
            sets |= {f"data.eval.{name}": source for name, source in self.eval.items()}
        else:
            sets["data.eval"] = self.eval
        named = {key: Component(source) if isinstance(source, str) else source for key, source in sets.items()}
        return {key: source for key, source in named.items() if source is not None}


@attrs.frozen(kw_only=True)
class RolesConfig:
    """Cooperation of `agentrl train`, `serve` and `sample` as separate processes."""

    wait_s: float | None = field(default=600.0, validator=limit)
    """Longest time in seconds that one of them waits for another; then it ends with an error that names what it waited
    for. None: no limit."""


@attrs.frozen(kw_only=True)
class PluginsConfig:
    """Plugin packages and modules to load."""

    block: tuple[str, ...] = ()
    """Names of installed plugin packages that are not loaded."""
    modules: tuple[str, ...] = ()
    """Modules or files to import first, because they register components, for example with `register_scorer`."""
    on_error: Literal["stop", "warn"] = "stop"
    """Treatment of a lifecycle hook that raises: `stop` ends the run, `warn` goes on."""


@attrs.frozen(kw_only=True)
class RunConfig:
    """Options of one run of `agentrl run`; `agentrl config show` prints them with their defaults."""

    name: str = field(default="", validator=run_name)
    """Name of the run and of its folder; empty: a generated name."""
    seed: int = field(default=0, validator=seed_number)
    """Seed of everything random: order of tasks, sampling, a model built from nothing."""
    output_dir: str = field(default="runs", validator=filled)
    """Folder that holds the run directories, relative to the working directory."""
    model: ModelConfig = field(factory=ModelConfig)
    warm_start: WarmStartConfig | None = None
    data: DataConfig = field(factory=DataConfig)
    scorers: Mapping[str, Component] = field(factory=dict)
    """Scorers with options, or made of other scorers, under names that tasks and data.default_scorer can use."""
    workflow: Component | None = None
    """The agent; optional if Python passes it to `Trainer.train`."""
    sampling: SamplingConfig = field(factory=SamplingConfig)
    engine: Component = Component("embedded")
    """Inference engine of the policy: `embedded` in this process; packages bring `sglang` and `vllm`,
    for model servers."""
    gateway: GatewayConfig = field(factory=GatewayConfig)
    rollout: RolloutConfig = field(factory=RolloutConfig)
    tools: ToolsConfig = field(factory=ToolsConfig)
    context: Component = Component("none")
    """Context policy, which shortens the history of long episodes before the policy sees it: `none`, or a package's."""
    credit: Component = Component("tree")
    """Rule that shares a record's reward among its LLM calls: `tree` or `insertion_order`."""
    shaping: tuple[Component, ...] = ()
    """Transformations of the rewards before the advantages are computed, applied in this order."""
    advantage: Component = Component(AUTO)
    """Advantage estimator. `auto`: the one that the loss asks for, else `grpo`."""
    filters: tuple[Component, ...] = (Component("zero_variance"),)
    """Filters that select the groups and records to train on, applied in this order."""
    loss: Component = Component("grpo")
    """Loss to minimize, with its aggregation and corrections."""
    trainer: TrainerConfig = field(factory=TrainerConfig)
    eval: EvalConfig = field(factory=EvalConfig)
    store: Component = Component("sqlite")
    """Store of records, calls and steps: `sqlite`, one file per run."""
    trackers: tuple[Component, ...] = (Component("console"), Component("jsonl"), Component("curve"))
    """Outputs for metrics: `console` (the terminal), `jsonl` (metrics.jsonl), `curve` (reward.png), or a package's."""
    weights: WeightsConfig = field(factory=WeightsConfig)
    roles: RolesConfig = field(factory=RolesConfig)
    launcher: Component = Component("local")
    """Only `local`, on this machine; the option is there because configs of other trainers set it."""
    plugins: PluginsConfig = field(factory=PluginsConfig)

    @property
    def eval_sampling(self) -> SamplingConfig:
        """Sampling parameters of evaluations."""
        own = self.eval
        return attrs.evolve(self.sampling, temperature=own.temperature, top_p=own.top_p, top_k=own.top_k)


SHORTHAND: Mapping[str, str] = {
    "data": "train",
    "workflow": "use",
    **{name: "use" for name, kind in get_type_hints(RunConfig).items() if kind is Component},
}
"""Sections of which a bare string sets one option: `loss: grpo` sets `loss.use`."""
