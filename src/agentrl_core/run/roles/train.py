"""`agentrl train`: creates a run or resumes it, and trains on what samplers in other processes put into the store."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_core import config as configs
from agentrl_core.config.invocation import command_line
from agentrl_core.errors import UsageError
from agentrl_core.run.components import resolve
from agentrl_core.run.interruption import Interruption
from agentrl_core.run.roles.joining import Commands, run_directory, weights_place
from agentrl_core.run.roles.rejoining import rejoining
from agentrl_core.run.roles.through_store import SamplingThroughStore
from agentrl_core.run.shared_start import run_status
from agentrl_core.run.start import Start, check_reference, fresh_start, resumed_start
from agentrl_core.run.training_run import Begin, run_training

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from agentrl_core.api.stores import Store
    from agentrl_core.api.trackers import RunSummary
    from agentrl_core.run.components import RunComponents
    from agentrl_core.run.directory import RunDirectory
    from agentrl_core.run.events import RunEvents
    from agentrl_core.run.membership import Membership
    from agentrl_core.stores.files import Writer

logger = logging.getLogger(__name__)


def train(
    config: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    name: str = "",
    notice: Callable[[str], None] = logger.info,
) -> RunSummary:
    """Create the run `name`, or resume it from its newest checkpoint, and train it to the end.

    A run that is resumed goes on with the given config and overrides. Blocks and raises like `Trainer.train`, and
    `MemberError` if a live server or sampler has another config.

    A process that was declared lost, for example because its machine was suspended, resumes the run, a few times in a
    row, unless another trainer has done so: then `MemberError`, or `UsageError` on the same machine, ends it.
    """
    loaded = configs.load(Path(config), overrides, name=name or None)
    command = Commands.of(config, loaded, overrides)

    def work(interruption: Interruption) -> RunSummary:
        return rejoining(
            lambda: _train(loaded, command, interruption), lease_s=loaded.run.rollout.lease_s, notice=notice
        )

    return Interruption().run(work)


def _going_on(command: Commands) -> Begin:
    """Return the function that resumes a run, unless it is finished and its config asks for no more steps."""

    def begin(
        components: RunComponents, directory: RunDirectory, store: Store, events: RunEvents, join: Callable[[], Writer]
    ) -> Start:
        before, _ = directory.read_snapshot()
        steps, done = components.config.trainer.steps, int(before["trainer"]["steps"])
        if steps <= done and asyncio.run(run_status(store, directory.name)) == "finished":
            raise UsageError(
                f"run '{directory.name}' is finished. To train it further, ask for more than its {done} steps: "
                f"`{command('train', f'trainer.steps={2 * done}')}`; to train another run from its last checkpoint: "
                f"`{command_line('runs', 'fork', directory.reference)}`"
            )
        return resumed_start(components, directory, store, events, join)

    return begin


def _train(
    loaded: configs.LoadedConfig[configs.RunConfig], command: Commands, interruption: Interruption
) -> RunSummary:
    directory = run_directory(loaded.run)
    components = resolve(loaded, role="train")
    directory.add_missing()
    begin: Begin = fresh_start
    if directory.snapshot.is_file():
        if directory.command != "run":
            raise UsageError(f"run '{directory.name}' is a supervised fine-tuning; choose another --name")
        check_reference(components, directory)
        begin = _going_on(command)
    else:
        with directory.locked():
            directory.write_snapshot(configs.dump_without_passwords(components.config), components.base_dir)

    def open_sampling(start: Start, membership: Membership, events: RunEvents) -> SamplingThroughStore:
        def asked_to_stop() -> None:
            interruption.check()
            membership.check()

        sampling = SamplingThroughStore(
            components,
            start,
            directory.name,
            place=weights_place(components, directory, directory.identity, writer=start.writer),
            notice=events.notice,
            asked_to_stop=asked_to_stop,
            command=command,
            report_also=membership.report_also,
        )
        events.progress.name_waits(lambda: sampling.waits_for)
        return sampling

    return run_training(
        components,
        directory,
        begin,
        interruption,
        roles=("train",),
        open_sampling=open_sampling,
        resume=command("train"),
    )
