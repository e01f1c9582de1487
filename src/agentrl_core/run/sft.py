"""Supervised fine-tuning on demonstrations, without sampling: `FineTuner(config).train()`, behind `agentrl sft`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core import config as configs
from agentrl_core.api.stores import StepRow
from agentrl_core.api.trackers import EvalReport, RunInfo, RunSummary, StepReport
from agentrl_core.config.invocation import near
from agentrl_core.config.sft import SftConfig
from agentrl_core.data.demonstrations import load_demonstrations
from agentrl_core.errors import ConfigError, UsageError
from agentrl_core.models.placement import device_of
from agentrl_core.plugins.manager import load_registry
from agentrl_core.run.audit import AuditTrail
from agentrl_core.run.checkpoints import Checkpoints
from agentrl_core.run.component_checks import BuiltComponents, ComponentChecks, problems_of
from agentrl_core.run.cpu_budget import wait_without_spinning
from agentrl_core.run.directory import RunDirectory
from agentrl_core.run.interruption import Interruption
from agentrl_core.run.lifecycle import carry_out
from agentrl_core.run.loss import settled
from agentrl_core.run.shared_start import (
    announce,
    check_unfinished,
    known_run,
    loading,
    model_directory,
    newest_checkpoint,
    rewind,
)

if TYPE_CHECKING:
    from contextlib import ExitStack

    from agentrl_core.api.stores import Store
    from agentrl_core.config import LoadedConfig
    from agentrl_core.data.demonstrations import Demonstration
    from agentrl_core.plugins.registry import Registry
    from agentrl_core.run.events import RunEvents
    from agentrl_core.training.fine_tuning import Tuner

COMMAND = "sft"
"""Value of `command` in the config snapshot of a fine-tuning's run directory."""


class FineTuner:
    """Supervised fine-tuning of one policy on demonstrations.

    `config` is an `SftConfig`, a mapping in the config file's shape, or the path of a YAML file; relative paths in it
    start from the file's folder, or from the working directory.
    """

    def __init__(
        self, config: SftConfig | Mapping[str, Any] | str | Path, *, overrides: Sequence[str] = (), name: str = ""
    ) -> None:
        if isinstance(config, str | Path):
            self._loaded = configs.load_as(SftConfig, Path(config), overrides, name=name or None)
        else:
            plain = configs.dump(config) if isinstance(config, SftConfig) else config
            run = configs.parse_as(SftConfig, plain, [*overrides, *([f"name={name}"] if name else [])])
            self._loaded = configs.LoadedConfig(run, Path.cwd())

    @property
    def config(self) -> SftConfig:
        """The config with overrides applied."""
        return self._loaded.run

    def train(self) -> RunSummary:
        """Train in a new run directory, and block until the end.

        Raises `UsageError` before anything starts if the config cannot work, and `RunError` if the run fails later.
        After Ctrl-C (`KeyboardInterrupt`) or SIGTERM (`SystemExit`), a checkpoint of the last whole step is saved.
        """
        return Interruption().run(self._train)

    def _train(self, interruption: Interruption) -> RunSummary:
        components = resolve(self._loaded)
        directory = RunDirectory.create(Path(self.config.output_dir), self.config.name)
        config = attrs.evolve(components.config, name=directory.name)
        directory.write_snapshot(configs.dump_without_passwords(config), self._loaded.base_dir, command=COMMAND)
        return _run(components, directory, interruption, resumed=False)


def resume(directory: RunDirectory, overrides: Sequence[str], interruption: Interruption) -> RunSummary:
    """Resume a killed or interrupted fine-tuning from its newest checkpoint.

    The result is bit-identical to that of an uninterrupted run.
    """
    kept, base_dir = directory.read_snapshot()
    config = configs.parse_as(SftConfig, kept, overrides)
    directory.check_name(config.name)
    components = resolve(configs.LoadedConfig(config, base_dir))
    with directory.locked():  # before the first change
        directory.write_snapshot(configs.dump_without_passwords(components.config), base_dir, command=COMMAND)
    return _run(components, directory, interruption, resumed=True)


@attrs.define(kw_only=True)
class SftComponents(BuiltComponents[SftConfig]):
    """Objects that the config of `agentrl sft` names."""

    rows: Sequence[Demonstration]
    eval_sets: Mapping[str, Sequence[Demonstration]]


class SftChecks(ComponentChecks[SftConfig]):
    """Checks of the config of `agentrl sft`."""

    def __init__(self, loaded: LoadedConfig[SftConfig], registry: Registry) -> None:
        super().__init__(loaded, registry)
        self.sets: dict[str, Sequence[Demonstration]] = {}
        """`data.train`, `data.eval`, `data.eval.NAME` -> the rows there."""

    def all(self) -> list[str]:
        """Return a line for each problem."""
        found = [*self.imports(), *self.model(), *self.components()]
        trainer = self._run.trainer
        if trainer.steps and trainer.epochs:
            found.append(f"{self._loaded.where('trainer.epochs')}: give either steps or epochs, found both")
        sources = {"data.train": self._run.data.train}
        if isinstance(self._run.data.eval, str):
            sources["data.eval"] = self._run.data.eval
        else:
            sources |= {f"data.eval.{name}": source for name, source in (self._run.data.eval or {}).items()}
        for key, source in sources.items():
            try:
                self.sets[key] = load_demonstrations(near(self._loaded.base_dir / Path(source).expanduser()))
            except UsageError as error:
                found.append(f"{self._loaded.where(key)}: {error}" if "\n" not in str(error) else str(error))
        return list(dict.fromkeys(found))

    def _loss(self) -> Iterator[str]:
        """Build the loss, and refuse one that needs rewards or sampling log-probabilities."""
        yield from problems_of(self._supervised_loss)

    def _supervised_loss(self) -> None:
        from agentrl_core.training.supervised import check_supervised

        check_supervised(self.built.build_loss()[0])


def check_config(loaded: LoadedConfig[SftConfig]) -> Sequence[str]:
    """Return one line for each problem that can be found before a fine-tuning starts."""
    plugins = loaded.run.plugins
    return SftChecks(loaded, load_registry(plugins.block, on_error=plugins.on_error)).all()


def resolve(loaded: LoadedConfig[SftConfig]) -> SftComponents:
    """Load the registry and the data; raise one `UsageError` for everything that would fail later."""
    wait_without_spinning()
    config = loaded.run
    registry = load_registry(config.plugins.block, on_error=config.plugins.on_error)
    checks = SftChecks(loaded, registry)
    if problems := checks.all():
        raise ConfigError("\n".join(problems))
    loaded = attrs.evolve(loaded, run=settled(loaded, registry))
    evals = {
        key.removeprefix("data.").removeprefix("eval."): rows
        for key, rows in checks.sets.items()
        if key != "data.train"
    }
    return SftComponents(
        loaded=loaded,
        registry=registry,
        early=checks.built.early,
        used=checks.built.used,
        rows=checks.sets["data.train"],
        eval_sets=evals,
    )


def _run(
    components: SftComponents, directory: RunDirectory, interruption: Interruption, *, resumed: bool
) -> RunSummary:
    started = time.time()

    def work(store: Store, events: RunEvents, _: ExitStack) -> RunSummary:
        step, version = 0, 0
        if not resumed:
            asyncio.run(announce(store, components, directory.name, identity=directory.identity))
        checkpoint = newest_checkpoint(store, directory, events.notice) if resumed else None
        start = (
            checkpoint[1] if checkpoint else model_directory(components, directory, lambda: _conversations(components))
        )
        events.notice(loading(start))
        # The tuner comes before the check: with `epochs` the number of steps is known only from the rows.
        tuner = _tuner(components, start)
        if checkpoint is not None:
            step, folder = checkpoint
            check_unfinished(store, directory, step, steps=tuner.steps)
            tuner.restore(folder)
        for line in tuner.notices:
            events.notice(line)
        if resumed:
            asyncio.run(known_run(store, components, directory))
            version = asyncio.run(rewind(store, directory.name, step)).last_version + 1
            events.notice(f"resumed after step {step}")
        else:
            asyncio.run(store.add_version(directory.name, 0, step=0))
        loop = _Loop(
            components, directory, store, events, tuner, interruption, step=step, version=version, started_at=started
        )
        return loop.run()

    return carry_out(components, directory, work)


def _conversations(components: SftComponents) -> list[dict[str, Any]]:
    """Return the chats on which the tokenizer of a model from nothing is trained."""
    return [row.chat for row in components.rows if row.messages]


def _tuner(components: SftComponents, model_dir: Path) -> Tuner:
    from agentrl_core.training.fine_tuning import Tuner

    return Tuner(
        model_dir=model_dir,
        rows=components.rows,
        eval_sets=components.eval_sets,
        loss=components.loss,
        aggregation=components.loss_section.aggregation,
        config=components.config,
        device=device_of(components.config.trainer.device, option=components.where("trainer.device")),
    )


class _Loop:
    """Loop of one fine-tuning: updates, held-out loss, checkpoints, reports."""

    def __init__(
        self,
        components: SftComponents,
        directory: RunDirectory,
        store: Store,
        events: RunEvents,
        tuner: Tuner,
        interruption: Interruption,
        *,
        step: int,
        version: int,
        started_at: float,
    ) -> None:
        self._components, self._config, self._directory = components, components.config, directory
        self._store, self._events, self._tuner = store, events, tuner
        self._step, self._version, self._started_at = step, version, started_at
        self._checkpoints = Checkpoints(tuner, store, directory, self._config.trainer, events.progress, step=step)
        self._audit = AuditTrail(
            store,
            directory,
            config=configs.dump_without_passwords(components.config),
            used=components.used,
            base_dir=components.base_dir,
            step=step,
            version=version,
        )
        self._interruption = interruption
        tuner.before_change(interruption.hold)
        self._evals: list[EvalReport] = []

    def run(self) -> RunSummary:
        """Train to the end. The summary also goes to the trackers if the run fails or is interrupted."""
        planned = attrs.evolve(self._config.trainer, steps=self._tuner.steps, epochs=None)
        info = RunInfo(
            name=self._directory.name,
            directory=str(self._directory.path),
            config=configs.dump_without_passwords(attrs.evolve(self._config, trainer=planned)),
            components=dict(self._components.used),
            command=COMMAND,
        )
        status, message = "failed", ""
        try:
            self._events.run_started(info)
            self._train()
            status = "finished"
        except KeyboardInterrupt:
            status = "interrupted"
            message = self._checkpoints.save_interrupted(
                self._step, self._version, self._events.notice, broke_step=self._interruption.broke_step
            )
            raise KeyboardInterrupt(message) from None  # `carry_out` adds the command that resumes
        except BaseException as error:
            message = str(error)
            raise
        finally:
            summary = self._finish(status, message)
        return summary

    def _train(self) -> None:
        every, steps = self._config.eval.every, self._tuner.steps
        self._evaluate()
        while self._step < steps:
            with self._interruption.whole_step():
                self._take_step()
            if every and self._step % every == 0 and self._step < steps:
                self._evaluate()
        if not self._evals or self._evals[-1].step != self._step:
            self._evaluate()
        self._checkpoints.save(self._step, self._version)

    def _take_step(self) -> None:
        self._events.progress.begin_step(self._step + 1, self._tuner.steps, ahead=False)
        self._events.progress.begin("training")
        metrics = self._tuner.step()
        self._interruption.hold()
        self._step += 1
        self._version += 1
        name = self._directory.name
        asyncio.run(self._store.add_version(name, self._version, step=self._step))
        row = StepRow(run_id=name, step=self._step, version=self._version, groups=(), records=(), metrics=metrics)
        asyncio.run(self._store.add_step(row))
        self._checkpoints.after_step(self._step, self._version)
        self._audit.step(row)
        self._events.step_finished(StepReport(step=self._step, version=self._version, metrics=metrics, outcomes={}))

    def _evaluate(self) -> None:
        self._events.progress.begin("evaluating")
        losses = self._tuner.held_out()
        if losses:
            report = EvalReport(step=self._step, rewards={}, records={}, losses=losses)
            self._evals.append(report)
            self._events.evaluated(report)

    def _finish(self, status: str, message: str) -> RunSummary:
        head = self._audit.end(status)
        summary = RunSummary(
            name=self._directory.name,
            directory=str(self._directory.path),
            status=status,
            steps=self._step,
            version=self._version,
            evals=tuple(self._evals),
            outcomes={},
            llm_calls=0,
            cpu_seconds={"learner": self._tuner.cpu_seconds},
            wall_s=time.time() - self._started_at,
            error=message,
            head=head,
        )
        self._events.run_finished(summary)
        return summary
