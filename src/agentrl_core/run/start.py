"""Where a run begins: the policy's folder, the learner, the store, the first step. Fresh or resumed."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core import config as configs
from agentrl_core.batching.filters import as_filter
from agentrl_core.batching.shaping import as_shaping
from agentrl_core.config.schema import Component
from agentrl_core.errors import ConfigError, DataError, RunError, UsageError
from agentrl_core.stores.base import RunRow
from agentrl_core.training.learner import Learner

if TYPE_CHECKING:
    from agentrl_core.run.components import Components
    from agentrl_core.run.directory import RunDirectory
    from agentrl_core.stores.base import ResumePoint, Store

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Start:
    """Everything that the training loop starts from."""

    model_dir: Path
    """Weights, tokenizer and template that the engine and the gateway load."""
    learner: Learner
    store: Store
    step: int = 0
    """Optimizer steps done."""
    version: int = 0
    """Policy version of the weights in `model_dir`."""
    next_index: int = 0
    """Submission index of the next group."""
    left: Mapping[int, int] = attrs.field(factory=dict)
    """Earlier submission indices that no step consumed -> groups of them that had ended unusable."""


def fresh_start(components: Components, directory: RunDirectory, store: Store, notice: Callable[[str], None]) -> Start:
    """Build or find the policy, and warm-start it if the config says so."""
    asyncio.run(_announce(store, components, directory.name))
    model_dir, learner = _initial_policy(components, directory, notice)
    asyncio.run(store.add_version(directory.name, 0, step=0))
    return Start(model_dir=model_dir, learner=learner, store=store)


def untrained_start(components: Components, directory: RunDirectory, store: Store) -> Start:
    """Build or find the policy, and leave it as it is: no warm start."""
    asyncio.run(_announce(store, components, directory.name))
    model_dir = _model_directory(components, directory)
    learner = _learner(components, model_dir)
    asyncio.run(store.add_version(directory.name, 0, step=0))
    return Start(model_dir=model_dir, learner=learner, store=store)


def resumed_start(
    components: Components, directory: RunDirectory, store: Store, notice: Callable[[str], None]
) -> Start:
    """Restore the newest checkpoint and void what was consumed after it; with none, begin anew."""
    checkpoint = directory.latest_checkpoint()
    if checkpoint is None:
        step = 0
        model_dir, learner = _initial_policy(components, directory, notice)
    else:
        step, model_dir = checkpoint
        status = asyncio.run(_known_status(store, directory))
        if step >= components.config.trainer.steps and status == "finished":
            raise UsageError(
                f"run '{directory.name}' is finished: {step} of {components.config.trainer.steps} steps; "
                f"give it more with: agentrl runs resume {directory.reference} trainer.steps={2 * step}"
            )
        learner = _learner(components, model_dir)
        learner.restore(model_dir)
    point = asyncio.run(_rewind(store, components, directory.name, step))
    lost = "" if checkpoint else f"; no checkpoint is left in {directory.checkpoints}, so all steps are taken again"
    notice(f"resumed after step {step}, at group {point.next_index}{lost}")
    version = point.last_version + 1
    return Start(
        model_dir=model_dir,
        learner=learner,
        store=store,
        step=step,
        version=version,
        next_index=point.next_index,
        left=point.left,
    )


async def _known_status(store: Store, directory: RunDirectory) -> str:
    """How the run ended; a checkpoint without its store would start the order of tasks and the versions anew."""
    known = {run.id: run.status for run in await store.runs()}
    if directory.name not in known:
        raise UsageError(
            f"{directory.path} has checkpoints, but its store {directory.database} does not know the run "
            f"'{directory.name}' (it knows: {', '.join(known) or 'none'}); put the store back, or start a new run "
            "with model.path set to the checkpoint"
        )
    return known[directory.name]


async def _announce(store: Store, components: Components, run_id: str) -> None:
    row = RunRow(
        id=run_id,
        created_at=time.time(),
        status="running",
        config=configs.dump(components.config),
        components=components.used,
    )
    await store.create_run(row)


async def _rewind(store: Store, components: Components, run_id: str, step: int) -> ResumePoint:
    """Void what came after `step`, and publish its weights as a version that the run never had."""
    if run_id not in {run.id for run in await store.runs()}:  # killed before the store knew of it
        await _announce(store, components, run_id)
    await store.void_after(run_id, step)
    point = await store.resume_point(run_id, step)
    await store.update_run(run_id, status="running")
    await store.add_version(run_id, point.last_version + 1, step=step)
    return point


def _initial_policy(
    components: Components, directory: RunDirectory, notice: Callable[[str], None]
) -> tuple[Path, Learner]:
    """The policy before the first step and the folder that holds it."""
    model_dir = _model_directory(components, directory)
    learner = _learner(components, model_dir)
    warm_start = components.config.warm_start
    if warm_start is None:
        return model_dir, learner
    rows = _demonstrations(components)
    notice(f"warm start: {warm_start.steps} steps on {len(rows)} demonstrations")
    losses = learner.warm_start(rows, warm_start)
    notice(f"warm start done: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    model_dir = directory.checkpoints / "step-0"
    learner.save(model_dir, step=0, version=0)
    return model_dir, learner


def _learner(components: Components, model_dir: Path) -> Learner:
    from agentrl_core.losses import split_options

    config = components.config
    options, aggregation = split_options(config.loss.options)
    return Learner(
        model_dir=model_dir,
        loss=components.build("losses", "loss", attrs.evolve(config.loss, options=options)),
        aggregation=aggregation,
        advantage=components.build("advantages", "advantage", config.advantage),
        credit=components.build("credits", "credit", config.credit, turn_discount=config.rollout.agent.turn_discount),
        shaping=[as_shaping(components.build("shapings", "shaping", item), item.use) for item in config.shaping],
        filters=[as_filter(components.build("filters", "filters", item), item.use) for item in config.filters],
        export_style=config.rollout.agent.export_style,
        config=config.trainer,
        seed=config.seed,
        dtype=config.model.dtype,
    )


def _model_directory(components: Components, directory: RunDirectory) -> Path:
    """The policy before training: the config's own folder, or one that its builder fills."""
    config, where = components.config, components.where
    if config.model.path is not None:
        path = (components.base_dir / config.model.path).expanduser().resolve()
        if not (path / "config.json").is_file():
            raise ConfigError(
                f"{where('model.path')}: {path} is not a model directory (no config.json there); expected a folder "
                "that from_pretrained reads: config.json, weights, tokenizer.json and a chat template"
            )
        return path
    if config.model.use is None:
        raise ConfigError(f"{where('model')}: name the policy: `path: FOLDER` or `use: tiny`")
    if not (directory.model / "config.json").is_file():  # a resumed run has it
        builder = Component(config.model.use, config.model.options)
        components.build(
            "models",
            "model",
            builder,
            directory=directory.model,
            seed=config.seed,
            conversations=_conversations(components),
        )()
    return directory.model


def _conversations(components: Components) -> list[dict[str, Any]]:
    """What a built tokenizer is trained on: the demonstrations, else the tasks' own messages."""
    if components.config.warm_start is not None:
        return _demonstrations(components)
    return [{"messages": list(task.data["messages"])} for task in components.tasks]


def _demonstrations(components: Components) -> list[dict[str, Any]]:
    """The warm start's JSONL of chats."""
    warm_start = components.config.warm_start
    if warm_start is None:
        raise RunError("there is no warm_start section")
    path = (components.base_dir / warm_start.data).resolve()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{components.where('warm_start.data')}: cannot read {path}: {error}") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}:{number}: not JSON: {error}") from error
        if not (isinstance(row, dict) and isinstance(row.get("messages"), list)):
            raise DataError(f'{path}:{number}: expected {{"messages": […], "tools": […]}}')
        rows.append(row)
    if not rows:
        raise DataError(f"{path}: no demonstrations")
    return rows
