"""Starting state of `agentrl run`: policy, learner, step and version, for a fresh, a resumed or an untrained start.

The parts that `agentrl sft` needs too are in `shared_start.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core import config as configs
from agentrl_core.config.invocation import near
from agentrl_core.data.demonstrations import load_demonstrations
from agentrl_core.errors import ConfigError
from agentrl_core.models.placement import device_of
from agentrl_core.plugins.discovery import names_core
from agentrl_core.run.cpu_budget import learner_threads, usable_cores
from agentrl_core.run.shared_start import (
    announce,
    check_unfinished,
    known_run,
    loading,
    model_directory,
    newest_checkpoint,
    rewind,
)
from agentrl_core.stores.files import UNNAMED

if TYPE_CHECKING:
    from agentrl_core.api.stores import Store
    from agentrl_core.config.schema import RunConfig
    from agentrl_core.config.training_sections import WarmStartConfig
    from agentrl_core.data.demonstrations import Demonstration
    from agentrl_core.run.components import RunComponents
    from agentrl_core.run.directory import RunDirectory
    from agentrl_core.run.events import RunEvents
    from agentrl_core.stores.files import Writer
    from agentrl_core.training.learner import Learner
    from agentrl_core.training.logprob_gap import EnginePrecision


@attrs.frozen(kw_only=True)
class Start:
    """State from which the training loop starts."""

    model_dir: Path
    """Weights, tokenizer and template that the engine and the gateway load."""
    learner: Learner
    store: Store
    step: int = 0
    """Number of optimizer steps done."""
    version: int = 0
    """Policy version of the weights in `model_dir`."""
    writer: Writer = UNNAMED
    """The trainer, as a member of the run."""


def fresh_start(
    components: RunComponents, directory: RunDirectory, store: Store, events: RunEvents, join: Callable[[], Writer]
) -> Start:
    """Start a new run: build or find the policy, and warm-start it if the config says so.

    `join()` makes this process a member as soon as the store has the run.
    """
    asyncio.run(announce(store, components, directory.name, identity=directory.identity))
    writer = join()
    model_dir, learner = _initial_policy(components, directory, events, writer)
    asyncio.run(store.add_version(directory.name, 0, step=0, member_id=writer.name))
    return Start(model_dir=model_dir, learner=learner, store=store, writer=writer)


def untrained_start(components: RunComponents, directory: RunDirectory, store: Store) -> Start:
    """Start for `agentrl doctor`: build or find the policy, without the warm start, which may take minutes."""
    asyncio.run(announce(store, components, directory.name))
    model_dir = model_directory(components, directory, lambda: _conversations(components))
    learner = _learner(components, directory, model_dir)
    asyncio.run(store.add_version(directory.name, 0, step=0))
    return Start(model_dir=model_dir, learner=learner, store=store)


def check_reference(components: RunComponents, directory: RunDirectory) -> None:
    """Raise `ConfigError` if a resumed run's loss needs a reference policy that the run did not keep.

    This happens when an override adds a correction such as `kl` to a run that began with a warm start and without it.
    """
    named = components.loss_section.reference
    if "reference" not in components.loss.needs or named is not None or components.config.warm_start is None:
        return
    if directory.all_checkpoints() and not (directory.warm_started / "config.json").is_file():
        raise ConfigError(
            f"{components.where('loss')}: needs the policy after the warm start as its reference, which is not in "
            f"{directory.warm_started}: a run keeps it only if its loss needs it from the start. Name a model folder "
            "with loss.reference, or leave the correction out"
        )


def resumed_start(
    components: RunComponents, directory: RunDirectory, store: Store, events: RunEvents, join: Callable[[], Writer]
) -> Start:
    """Restore the newest checkpoint and void the steps after it; without a checkpoint, start from step 0.

    `join()` makes this process a member before anything is loaded or voided: another trainer may be live. The folder's
    snapshot becomes the config of `components` only then: one that is refused must not stay for the next resumption.
    """
    checkpoint = newest_checkpoint(store, directory, events.notice)
    if checkpoint is not None:
        check_unfinished(store, directory, checkpoint[0], steps=components.config.trainer.steps)
    asyncio.run(known_run(store, components, directory))
    writer = join()
    if checkpoint is None:
        step = 0
        model_dir, learner = _initial_policy(components, directory, events, writer)
    else:
        step, model_dir = checkpoint
        events.notice(loading(model_dir))
        learner = _learner(components, directory, model_dir)
        learner.restore(model_dir)
    directory.write_snapshot(configs.dump_without_passwords(components.config), components.base_dir)
    point = asyncio.run(rewind(store, directory.name, step, member_id=writer.name))
    if point.last_version < 0 and directory.origin:
        events.notice(f"begins from the checkpoint of {directory.origin}")
    else:
        lost = "" if checkpoint else f"; there is no checkpoint in {directory.checkpoints}, so all steps are repeated"
        events.notice(f"resumed after step {step}, at group {point.next_index}{lost}")
    version = point.last_version + 1
    return Start(
        model_dir=model_dir,
        learner=learner,
        store=store,
        step=step,
        version=version,
        writer=writer,
    )


def _initial_policy(
    components: RunComponents, directory: RunDirectory, events: RunEvents, writer: Writer
) -> tuple[Path, Learner]:
    """Return the folder of the policy before the first step, and its learner; run the warm start if there is one."""
    if builder := components.config.model.use:
        events.notice(f"building the policy '{builder}'")
    model_dir = model_directory(components, directory, lambda: _conversations(components), writer=writer)
    events.notice(loading(model_dir))
    learner = _learner(components, directory, model_dir)
    warm_start = components.config.warm_start
    if warm_start is None:
        return model_dir, learner
    if not components.config.trainer.steps:
        events.notice("trainer.steps is 0, so the warm start is left out, too: its model is evaluated untrained")
        return model_dir, learner
    rows = _demonstrations(components, warm_start)
    events.notice(f"warm start: {warm_start.steps} steps on {len(rows)} demonstrations")
    events.progress.begin("warm start", total=warm_start.steps, unit="steps")
    losses = learner.warm_start(rows, warm_start, after_step=events.progress.advance)
    events.progress.begin("loading")
    events.notice(f"warm start done: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    # The reference comes before the checkpoint: a run killed in between resumes from the checkpoint, skips the warm
    # start, and would never get its reference.
    if learner.refers:
        learner.save(directory.warm_started, step=0, version=0, writer=writer)
    model_dir = directory.checkpoints / "step-0"
    learner.save(model_dir, step=0, version=0, writer=writer)
    return model_dir, learner


def _learner(components: RunComponents, directory: RunDirectory, model_dir: Path) -> Learner:
    from agentrl_core.training.learner import Learner  # imports torch, so after the notices and the cheap checks

    config, loss, section = components.config, components.loss, components.loss_section
    (advantage,), (credit,) = components.of("advantages"), components.of("credits")
    return Learner(
        model_dir=model_dir,
        loss=loss,
        aggregation=section.aggregation,
        proximal=section.proximal,
        reference=_reference(components, directory, section.reference) if "reference" in loss.needs else None,
        advantage=advantage,
        credit=credit,
        shaping=components.of("shapings"),
        filters=components.of("filters"),
        export_style=config.rollout.agent.export_style,
        config=attrs.evolve(config.trainer, threads=learner_threads(config, usable_cores())[0]),
        seed=config.seed,
        dtype=config.model.dtype,
        engine_precision=_engine_precision(config),
        device=device_of(config.trainer.device, option=components.where("trainer.device")),
    )


def _engine_precision(config: RunConfig) -> EnginePrecision:
    """Return the type that the engine computes in; only the embedded one is known to take it from the config."""
    if not names_core(config.engine.use, "embedded"):
        return "unknown"
    precision: EnginePrecision = config.engine.options.get("dtype") or config.model.dtype
    return precision


def _reference(components: RunComponents, directory: RunDirectory, path: str | None) -> Path:
    """Return the folder of the reference policy: `loss.reference`, else the policy before the first step."""
    if path is not None:
        return (components.base_dir / Path(path).expanduser()).resolve()
    if components.config.warm_start is not None:
        return directory.warm_started
    return model_directory(components, directory, lambda: _conversations(components))


def _conversations(components: RunComponents) -> list[dict[str, Any]]:
    """Return the chats on which a built tokenizer is trained: the demonstrations, else the tasks' own messages."""
    if components.config.warm_start is not None:
        return [row.chat for row in _demonstrations(components, components.config.warm_start) if row.messages]
    return [{"messages": list(task.data["messages"])} for task in components.tasks]


def _demonstrations(components: RunComponents, config: WarmStartConfig) -> list[Demonstration]:
    return load_demonstrations(near(components.base_dir / Path(config.data).expanduser()))
