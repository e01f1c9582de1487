"""Advice of `agentrl doctor` on options whose defaults suit a tiny policy and not a real model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from agentrl_core.plugins.discovery import names_core

if TYPE_CHECKING:
    from agentrl_core.config.schema import RunConfig

_REAL = 50_000_000
"""Number of parameters from which on a model is a real one for this advice; the built-in tiny ones have at most 4M."""
_CPU_SPEED = 7e9
"""Sampled tokens per second and core, times parameters: 54 tokens/s of a model of 134.5M parameters in float32, 16
requests at a time, on one core of an AMD EPYC."""
_LONG_S = 600.0
"""Seconds of sampling for one step from which on its length is pointed out."""
_DESTRUCTIVE_LR = 3e-5
"""Learning rate on all weights from which on a pretrained model is likely to lose its abilities."""
_STATE_BYTES = {"float32": 12, "bfloat16": 14}
"""Bytes of a checkpoint per parameter: weights, bf16's master weights, and AdamW's two moments."""


@attrs.frozen(kw_only=True)
class Setting:
    """The model and the machine that the advice is for."""

    parameters: int
    """Number of the model's parameters."""
    reply_tokens: int
    """Limit of a reply in tokens, if the agent sets none."""
    pretrained: bool
    on_cpu: bool
    """Whether the policy computes on the CPU."""
    cores: int
    """Number of cores that this process may use."""
    free_bytes: int
    """Free disk space in `output_dir`."""


def advice(config: RunConfig, setting: Setting) -> Iterator[str]:
    """Yield what to change in the config for this model and machine, one sentence or two for each problem."""
    yield from _temperature(config)
    if setting.parameters < _REAL:
        return
    yield from _rate(config, setting)
    if names_core(config.engine.use, "embedded"):
        if setting.on_cpu:
            yield from _cpu(config, setting)
    else:
        yield from _server(config)
    yield from _precision(config, setting)
    yield from _checkpoints(config, setting)


def num_parameters(model_dir: Path) -> int:
    """Return the number of parameters in the model folder's safetensors files, from their headers alone; 0 without any.

    Tied weights are stored, and counted, once.
    """
    total = 0
    for path in model_dir.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        total += sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    return total


def _temperature(config: RunConfig) -> Iterator[str]:
    trained, evaluated = config.sampling.temperature, config.eval.temperature
    has_sets = any(key.startswith("data.eval") for key in config.data.sources)
    if has_sets and evaluated not in (trained, 0.0):
        yield (
            f"evaluations sample at temperature {evaluated:g}, training at {trained:g}, so their rewards cannot be "
            f"compared; set eval.temperature to {trained:g}, or to 0 for greedy replies"
        )


def _rate(config: RunConfig, setting: Setting) -> Iterator[str]:
    lr = config.trainer.lr
    if setting.pretrained and lr is not None and lr > _DESTRUCTIVE_LR:
        yield (
            f"trainer.lr is {lr:g}: a rate above {_DESTRUCTIVE_LR:g} on all weights usually destroys a pretrained model"
            " within a few steps; leave it out (1e-6), or try 3e-6"
        )


def _cpu(config: RunConfig, setting: Setting) -> Iterator[str]:
    """Yield advice on sampling and training on a CPU."""
    trainer, rollout = config.trainer, config.rollout
    threads = config.engine.options.get("threads", 1)
    if setting.cores > 1 and trainer.threads == threads == 1 and not rollout.max_head_offpolicyness:
        yield (
            f"learner and engine use one of {setting.cores} cores; if the machine is idle otherwise, set "
            f"trainer.threads: {setting.cores} and engine: {{use: embedded, threads: {setting.cores}}}"
        )
    limit = setting.reply_tokens
    rate = _CPU_SPEED * threads / setting.parameters
    episodes = rollout.group_size * rollout.tasks_per_step
    at_once = min(episodes, rollout.max_concurrent_rollouts)
    name = "sampling.max_tokens" + (" is not set, so it" if config.sampling.max_tokens is None else "")
    if episodes * limit / rate > _LONG_S:
        yield (
            f"{name} is {limit:,}: {episodes} replies of that length, one per episode, take about "
            f"{episodes * limit / rate / 60:,.0f} minutes per step on this CPU ({rate:.0f} tokens/s); set it to what a "
            "good reply needs"
        )
    if at_once * limit / rate > rollout.timeout_s:
        yield (
            f"{at_once} replies of {limit:,} tokens at once take about {at_once * limit / rate:,.0f} s on this CPU, "
            f"longer than rollout.timeout_s ({rollout.timeout_s:g}): episodes would be cut off; lower "
            "sampling.max_tokens or rollout.max_concurrent_rollouts, or raise the limit"
        )


def _server(config: RunConfig) -> Iterator[str]:
    """Yield advice on sampling from model servers."""
    rollout = config.rollout
    episodes = rollout.group_size * rollout.tasks_per_step
    if rollout.max_concurrent_rollouts < min(episodes, 128):
        yield (
            f"rollout.max_concurrent_rollouts is {rollout.max_concurrent_rollouts} of {episodes} episodes per step: a "
            "model server is the faster the more requests it has at a time; try 128 or more per GPU"
        )


def _precision(config: RunConfig, setting: Setting) -> Iterator[str]:
    if not setting.on_cpu and config.model.dtype == "float32":
        yield (
            "model.dtype is float32: on a GPU, bfloat16 samples and trains several times as fast in half the memory; "
            "the learner keeps float32 master weights"
        )


def _checkpoints(config: RunConfig, setting: Setting) -> Iterator[str]:
    """Yield a warning if the run's checkpoints will not fit on the disk; one more exists while it is written."""
    count = config.trainer.keep_last + 1
    size = _STATE_BYTES[config.model.dtype] * setting.parameters
    needed = count * size
    if needed > setting.free_bytes:
        yield (
            f"{count} checkpoints of {size / 2**30:.1f} GiB, as trainer.keep_last: "
            f"{config.trainer.keep_last} allows, do not fit into the {setting.free_bytes / 2**30:.1f} GiB that are free"
            " for output_dir; free disk space there, or lower keep_last"
        )
