"""From a config to a trained policy: `Trainer(config).train(workflow="my_module.MyAgent")`."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import attrs

from agentrl_core import config as configs
from agentrl_core.config.schema import RunConfig
from agentrl_core.errors import AgentRLError, RunError, StoreError, UsageError
from agentrl_core.run.audience import Audience
from agentrl_core.run.checks import Given
from agentrl_core.run.components import Components, resolve
from agentrl_core.run.directory import RunDirectory
from agentrl_core.run.loop import TrainingLoop
from agentrl_core.run.start import Start, fresh_start, resumed_start

if TYPE_CHECKING:
    from agentrl_core.stores.base import Store
    from agentrl_core.trackers.base import RunSummary, Tracker

logger = logging.getLogger(__name__)

T = TypeVar("T")
Begin: TypeAlias = "Callable[[Components, RunDirectory, Store, Callable[[str], None]], Start]"
"""What makes the start of a run: `fresh_start` or `resumed_start`."""


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
        if isinstance(config, str | Path):
            self._given = Given.from_file(configs.load(Path(config), overrides, name=name or None))
        else:
            run = config if isinstance(config, RunConfig) else configs.parse(config, overrides)
            named = configs.parse(configs.dump(run) | {"name": name}) if name else run
            self._given = Given.from_python(named, Path.cwd())

    @property
    def config(self) -> RunConfig:
        """What will run."""
        return self._given.run

    def train(self, workflow: object | None = None, *, workflow_kwargs: Mapping[str, Any] | None = None) -> RunSummary:
        """Run from the start to the end; `workflow` takes the place of the config's.

        `workflow_kwargs` are what its class is constructed with, or a function's own keyword arguments.

        Raises `UsageError` for what cannot work, before anything starts, and `RunError` where a started run
        cannot go on; what was stored stays.
        """
        return _outside_event_loops(lambda: self._train(workflow, workflow_kwargs))

    def _train(self, workflow: object | None, workflow_kwargs: Mapping[str, Any] | None) -> RunSummary:
        components = resolve(self._given, workflow=workflow, workflow_kwargs=workflow_kwargs)
        directory = RunDirectory.create(Path(self.config.output_dir), self.config.name)
        directory.write_snapshot(configs.dump(attrs.evolve(self.config, name=directory.name)), self._given.base_dir)
        return _run(components, directory, fresh_start)


def resume(
    run_dir: Path,
    overrides: Sequence[str] = (),
    *,
    workflow: object | None = None,
    workflow_kwargs: Mapping[str, Any] | None = None,
) -> RunSummary:
    """Go on with a killed or interrupted run from its newest checkpoint.

    The config is the run's own; `overrides` change it from here on (`trainer.steps=200`), for later resumes too.
    """
    return _outside_event_loops(lambda: _resume(run_dir, overrides, workflow, workflow_kwargs))


def _resume(
    run_dir: Path, overrides: Sequence[str], workflow: object | None, workflow_kwargs: Mapping[str, Any] | None
) -> RunSummary:
    directory = RunDirectory.open(run_dir)
    kept, base_dir = directory.read_snapshot()
    config = configs.parse(kept, overrides)
    if config.name != directory.name:
        raise UsageError(
            f"the folder {directory.path} is that of run '{config.name}': a run keeps its name; "
            "rename the folder back, or leave `name` out"
        )
    components = resolve(Given.from_python(config, base_dir), workflow=workflow, workflow_kwargs=workflow_kwargs)
    with directory.locked():  # before the first change
        directory.write_snapshot(configs.dump(config), base_dir)
    return _run(components, directory, resumed_start)


def _outside_event_loops(work: Callable[[], T]) -> T:
    """Do blocking work; where an event loop runs on this thread, a notebook's for one, on another thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1, thread_name_prefix="trainer") as thread:
        return thread.submit(work).result()


def _run(components: Components, directory: RunDirectory, begin: Begin) -> RunSummary:
    """Start, train and end, whatever happens in between."""
    started = time.time()
    with directory.locked(), directory.logging_to("run"), _terminated_as_interrupted(), ExitStack() as closing:
        closing.callback(components.close)
        try:
            audience = Audience(_trackers(components, directory, closing), components.registry.hooks.notify)
            store: Store = components.build("stores", "store", components.config.store, path=directory.database)
            closing.callback(lambda: asyncio.run(store.close()))
            with _status(store, directory.name):
                start = begin(components, directory, store, audience.notice)
                return TrainingLoop(components, directory, start, audience, started_at=started).run()
        except KeyboardInterrupt:
            raise RunError(
                "interrupted; what is stored stays. Go on from the newest checkpoint with: "
                f"agentrl runs resume {directory.reference}"
            ) from None
        except AgentRLError:
            logger.exception("the run stopped")
            raise
        except Exception as error:
            logger.exception("the run stopped")
            raise RunError(
                f"{type(error).__name__}: {error} (unforeseen; the traceback is in {directory.log('run')})"
            ) from error


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM, and a terminal that closes, end the run as Ctrl-C does: status stored, advice given."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may
        return

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    ours = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]  # nohup stays nohup
    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def _trackers(components: Components, directory: RunDirectory, closing: ExitStack) -> list[Tracker]:
    trackers: list[Tracker] = []
    for index, item in enumerate(components.config.trackers):
        tracker = components.build("trackers", f"trackers.{index}", item, run_dir=directory.path)
        closing.callback(tracker.close)
        trackers.append(tracker)
    return trackers


@contextmanager
def _status(store: Store, run_id: str) -> Iterator[None]:
    """Write into the store how the run ended; a finished one that does not go on stays finished."""
    try:
        yield
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        with suppress(StoreError):  # the store may be what failed, or not know the run yet
            if (run_id, "finished") not in {(row.id, row.status) for row in asyncio.run(store.runs())}:
                asyncio.run(store.update_run(run_id, status=status, error=str(error)))
        raise
    asyncio.run(store.update_run(run_id, status="finished"))
