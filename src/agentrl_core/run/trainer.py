"""Entry points of `agentrl run` and `runs resume`: `Trainer(config).train(workflow="my_module.MyAgent")`, `resume`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core import config as configs
from agentrl_core.config.live import live_paths
from agentrl_core.config.schema import RunConfig
from agentrl_core.errors import UsageError
from agentrl_core.run import sft
from agentrl_core.run.components import RunComponents, resolve
from agentrl_core.run.directory import RunDirectory
from agentrl_core.run.in_process import InProcessSampling
from agentrl_core.run.interruption import Interruption
from agentrl_core.run.kept_config import with_overrides
from agentrl_core.run.start import Start, check_reference, fresh_start, resumed_start
from agentrl_core.run.tools import check_start
from agentrl_core.run.training_run import Begin, run_training

if TYPE_CHECKING:
    from agentrl_core.api.members import Role
    from agentrl_core.api.stores import Store
    from agentrl_core.api.trackers import RunSummary
    from agentrl_core.run.events import RunEvents
    from agentrl_core.run.membership import Membership
    from agentrl_core.stores.files import Writer


class Trainer:
    """Reinforcement learning of one agent's policy.

    `config` is a `RunConfig`, a mapping in the config file's shape, or the path of a YAML file; relative paths
    in it start from the file's folder, or from the working directory.

        summary = Trainer("config.yaml", overrides=["trainer.steps=20"]).train()
        summary = Trainer(config).train(workflow="my_module.MyAgent")
    """

    def __init__(
        self, config: RunConfig | Mapping[str, Any] | str | Path, *, overrides: Sequence[str] = (), name: str = ""
    ) -> None:
        if isinstance(config, str | Path):
            self._loaded = configs.load(Path(config), overrides, name=name or None)
        else:
            run = config if isinstance(config, RunConfig) else configs.parse(config, overrides)
            named = configs.parse(configs.dump(run) | {"name": name}) if name else run
            self._loaded = configs.LoadedConfig(named, Path.cwd())

    @property
    def config(self) -> RunConfig:
        """The config with overrides applied."""
        return self._loaded.run

    def train(self, workflow: object | None = None, *, workflow_kwargs: Mapping[str, Any] | None = None) -> RunSummary:
        """Train in a new run directory, and block until the end; `workflow` replaces the config's workflow.

        `workflow_kwargs` are the arguments of the workflow's constructor, or a function's keyword arguments.

        Raises `UsageError` before anything starts if the config cannot work, and `RunError` if the run fails later;
        the run directory stays. After Ctrl-C (`KeyboardInterrupt`) or SIGTERM (`SystemExit`), a checkpoint of the last
        whole step is saved.
        """
        return Interruption().run(lambda interruption: self._train(workflow, workflow_kwargs, interruption))

    def _train(
        self, workflow: object | None, workflow_kwargs: Mapping[str, Any] | None, interruption: Interruption
    ) -> RunSummary:
        components = resolve(self._loaded, workflow=workflow, workflow_kwargs=workflow_kwargs)
        check_start(components, connect=True)
        directory = RunDirectory.create(Path(self.config.output_dir), self.config.name)
        directory.write_snapshot(
            configs.dump_without_passwords(attrs.evolve(components.config, name=directory.name)), self._loaded.base_dir
        )
        return _run(components, directory, fresh_start, interruption)


def resume(
    run_dir: Path,
    overrides: Sequence[str] = (),
    *,
    workflow: object | None = None,
    workflow_kwargs: Mapping[str, Any] | None = None,
) -> RunSummary:
    """Resume a killed or interrupted run, of `run` or of `sft`, from its newest checkpoint.

    The config is the one kept in the run directory. `overrides` such as `trainer.steps=200` change it from now on, and
    for later resumes too. Blocks and raises like `Trainer.train`.
    """
    return Interruption().run(lambda interruption: _resume(run_dir, overrides, workflow, workflow_kwargs, interruption))


def _resume(
    run_dir: Path,
    overrides: Sequence[str],
    workflow: object | None,
    workflow_kwargs: Mapping[str, Any] | None,
    interruption: Interruption,
) -> RunSummary:
    directory = RunDirectory.open(run_dir)
    if directory.command == sft.COMMAND:
        if workflow is not None or workflow_kwargs is not None:
            raise UsageError(f"run '{directory.name}' is a supervised fine-tuning, which takes no workflow")
        return sft.resume(directory, overrides, interruption)
    kept, base_dir = directory.read_snapshot()
    config = with_overrides(kept, base_dir, overrides)
    directory.check_name(config.name)
    components = resolve(configs.LoadedConfig(config, base_dir), workflow=workflow, workflow_kwargs=workflow_kwargs)
    check_start(components, connect=True)
    check_reference(components, directory)

    def begin(
        components: RunComponents, directory: RunDirectory, store: Store, events: RunEvents, join: Callable[[], Writer]
    ) -> Start:
        start = resumed_start(components, directory, store, events, join)
        # An override is newer than a limit that was set while the run was live.
        asyncio.run(store.set_control(directory.name, limits=dict.fromkeys(live_paths(overrides))))
        return start

    return _run(components, directory, begin, interruption)


def _run(components: RunComponents, directory: RunDirectory, begin: Begin, interruption: Interruption) -> RunSummary:
    """Run both sides in this process."""

    def open_sampling(start: Start, membership: Membership, events: RunEvents) -> InProcessSampling:
        events.notice("starting the engine and the gateway")
        return InProcessSampling(
            components,
            start,
            directory.name,
            membership=membership,
            admin_key_file=directory.admin_key,
            log_dir=directory.logs,
            on_scored=events.record_scored,
            on_ended=events.progress.ended,
            notice=events.notice,
            asked_to_stop=interruption.check,
        )

    roles: tuple[Role, ...] = ("train", "sample")
    return run_training(components, directory, begin, interruption, roles=roles, open_sampling=open_sampling)
