"""From a config to a trained policy: `Trainer(config).train(workflow="my_module.MyAgent")`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from agentrl_core import config as configs
from agentrl_core.config.schema import RunConfig
from agentrl_core.errors import AgentRLError, RunError
from agentrl_core.run.audience import Audience
from agentrl_core.run.components import Components, resolve
from agentrl_core.run.directory import RunDirectory
from agentrl_core.run.loop import TrainingLoop
from agentrl_core.run.start import Start, fresh_start, resumed_start
from agentrl_core.trackers.base import RunSummary

logger = logging.getLogger(__name__)


class Trainer:
    """Trains one agent.

    `config` is a `RunConfig`, a mapping in the config file's shape, or the path of a YAML file; relative paths
    in it start from the file's folder, or from the working directory.

        summary = Trainer("config.yaml", overrides=["trainer.steps=20"]).train()
        summary = Trainer(config).train(workflow="my_module.MyAgent")
    """

    def __init__(
        self, config: RunConfig | Mapping[str, Any] | str | Path, *, overrides: Sequence[str] = (), name: str = ""
    ) -> None:
        self._where: Callable[[str], str] = str
        self._base_dir = Path.cwd()
        if isinstance(config, str | Path):
            loaded = configs.load(Path(config), overrides)
            self._where, self._base_dir = loaded.where, loaded.base_dir
            run = loaded.run
        elif isinstance(config, RunConfig):
            run = config
        else:
            run = configs.parse(config)
        self.config: RunConfig = attrs.evolve(run, name=name) if name else run

    def train(self, workflow: object | None = None) -> RunSummary:
        """Run from the start to the end; `workflow` takes the place of the config's.

        Raises `UsageError` for what cannot work, before anything starts, and `RunError` where a started run
        cannot go on; what was stored stays.
        """
        components = resolve(self.config, self._base_dir, workflow=workflow, where=self._where)
        directory = RunDirectory.create(Path(self.config.output_dir), self.config.name)
        directory.write_snapshot(configs.dump(attrs.evolve(self.config, name=directory.name)), self._base_dir)
        return _run(components, directory, fresh_start)


def resume(run_dir: Path, overrides: Sequence[str] = (), *, workflow: object | None = None) -> RunSummary:
    """Go on with a killed or interrupted run from its newest checkpoint.

    The config is the run's own; `overrides` change it from here on (`trainer.steps=200`).
    """
    directory = RunDirectory.open(run_dir)
    kept, base_dir = directory.read_snapshot()
    config = configs.parse(kept, overrides)
    components = resolve(config, base_dir, workflow=workflow)
    return _run(components, directory, resumed_start)


def _run(
    components: Components,
    directory: RunDirectory,
    begin: Callable[[Components, RunDirectory, Callable[[str], None]], Start],
) -> RunSummary:
    """Start, train and end, whatever happens in between."""
    started = time.time()
    with directory.logging_to("run"):
        try:
            audience = Audience(
                [
                    components.build("trackers", "trackers", item, run_dir=directory.path)
                    for item in components.config.trackers
                ],
                components.registry.hooks.notify,
            )
            start = begin(components, directory, audience.notice)
            return TrainingLoop(components, directory, start, audience, started_at=started).run()
        except KeyboardInterrupt:
            raise RunError(
                f"interrupted; everything so far is stored. Go on with: agentrl runs resume {directory.name}"
            ) from None
        except AgentRLError:
            logger.exception("the run stopped")
            raise
