"""Find the run that a server or a sampler takes part in, and notice the run's end."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from agentrl_core.config.invocation import command_line
from agentrl_core.config.nodes import with_user_alone
from agentrl_core.errors import RunError, UsageError
from agentrl_core.plugins.options import construct
from agentrl_core.run.directory import RunDirectory
from agentrl_core.run.publication import check_through_place
from agentrl_core.run.roles.waiting import LOOK_S, Wait
from agentrl_core.run.stores import open_store
from agentrl_core.weights.delta_writer import DeltaWriter
from agentrl_core.weights.place import WeightsPlace

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from agentrl_core.api.members import Member, Role
    from agentrl_core.api.stores import RunRow, Store
    from agentrl_core.config import LoadedConfig
    from agentrl_core.config.schema import RunConfig
    from agentrl_core.run.components import RunComponents
    from agentrl_core.stores.files import Writer


@attrs.frozen(kw_only=True)
class Commands:
    """Command lines that start the members of one run."""

    config: str
    name: str
    overrides: Sequence[str] = ()
    """Overrides of this process, without passwords."""

    @classmethod
    def of(
        cls, config: str | os.PathLike[str], loaded: LoadedConfig[RunConfig], overrides: Sequence[str] = ()
    ) -> Commands:
        """Return the command lines for a config file, the run that it names, and what overrides it."""
        kept = [with_user_alone(override) for override in overrides]
        return cls(config=str(config), name=loaded.run.name or "RUN", overrides=kept)

    def __call__(self, role: Role, *more: str) -> str:
        """Return the command line of a role, with the overrides of this process and `more`."""
        given = {override.partition("=")[0]: override for override in (*self.overrides, *more)}
        return command_line(role, self.config, "--name", self.name, *given.values())


class RunOver(Exception):  # noqa: N818  # it is the orderly end
    """The run has ended as it should, and with it the work of a server or a sampler."""

    def __init__(self, run_id: str, how: str) -> None:
        super().__init__(f"run '{run_id}' has ended: {how}")


@attrs.frozen(kw_only=True)
class FoundRun:
    """A run that another process trains, with its open store."""

    store: Store
    row: RunRow


def run_directory(config: RunConfig) -> RunDirectory:
    """Return the folder of the run that the config names; `UsageError` if it names none."""
    if not config.name:
        raise UsageError("the run has no name; its members find each other by --name RUN, the same for all of them")
    return RunDirectory((Path(config.output_dir) / config.name).absolute())


def weights_place(
    components: RunComponents, directory: RunDirectory, identity: str, *, writer: Writer | None = None
) -> WeightsPlace:
    """Return the place of a run's published weights: `weights.place`, with a folder for each run, or the run's own.

    With a `writer`, versions are written as the section `weights` says, which raises `ConfigError` for what it cannot.
    """
    config = components.config.weights
    root = directory.weights(config.place, components.base_dir, identity)
    if writer is None:
        return WeightsPlace(root)
    check_through_place(components)
    deltas = None
    if config.publish.use == "delta":
        options = dict(config.publish.options)
        where = components.where("weights.publish")
        deltas = construct(
            DeltaWriter, options, name="delta", where=where, injected={"local": local_weights(components)}
        )
    return WeightsPlace(root, dtype=config.dtype, deltas=deltas, writer=writer)


def local_weights(components: RunComponents) -> Path | None:
    """Return the folder for whole copies of versions on this machine; None: the system's temporary folder."""
    local = components.config.weights.local
    return None if local is None else components.base_dir / Path(local).expanduser()


async def find_run(components: RunComponents, directory: RunDirectory, wait: Wait, command: Commands) -> FoundRun:
    """Wait until the run's trainer has joined it, and open its store; the caller closes the store.

    Raises `RunOver` for a run that is finished, and that no trainer goes on with.
    """
    missing, fix = f"run '{directory.name}', which does not exist yet", f"start it with `{command('train')}`"
    store = components.registry.load("stores", components.config.store.use, base_dir=components.base_dir, where="store")
    if "path" in inspect.signature(store).parameters:  # it lives in the run's folder, which the trainer makes
        here = f"{fix}; its folder is to be {directory.path}, as output_dir and the working directory say"
        while not (directory.snapshot.is_file() and directory.database.is_file()):
            wait.on(missing, here)
            await asyncio.sleep(LOOK_S)
    opened = open_store(components, directory)
    try:
        while True:
            row = next((row for row in await opened.runs() if row.id == directory.name), None)
            if row is None:
                wait.on(missing, fix)
            elif any(member.role == "train" for member in await opened.members(row.id, live=True)):
                # Whatever the row says: it has been resumed, and may be loading.
                wait.over()
                return FoundRun(store=opened, row=row)
            elif row.status == "finished":
                raise RunOver(row.id, row.status)  # noqa: TRY301  # the store is closed on the way
            elif row.status != "running":
                what = f"the trainer of run '{directory.name}', which is {row.status}"
                wait.on(what, f"resume it with `{command('train')}`")
            elif not any(member.role == "train" for member in await opened.members(row.id)):
                wait.on(f"the trainer of run '{directory.name}' to join it", fix)
            else:
                wait.over()
                return FoundRun(store=opened, row=row)
            await asyncio.sleep(LOOK_S)
    except BaseException:
        await opened.close()
        raise


class RunEnd:
    """Watch of a server or a sampler over its run: whether it has ended, and whether it has a trainer."""

    def __init__(self, run: FoundRun, limit_s: float | None, notice: Callable[[str], None], command: Commands) -> None:
        self._run, self._wait, self._command = run, Wait(notice, limit_s), command

    @property
    def waits_for(self) -> str:
        """Text for other members of what this one waits for."""
        return self._wait.what

    async def look(self, members: Sequence[Member]) -> None:
        """Raise `RunOver` if the run is finished, and `RunError` if it has failed, or lacks a trainer for too long.

        `members` are the live ones. A run with a live trainer goes on, whatever a former one has made of it. A trainer
        that was killed or interrupted may come back, so its run has not ended.
        """
        if any(member.role == "train" for member in members):
            self._wait.over()
            return
        store, run_id = self._run.store, self._run.row.id
        trainers = [member for member in await store.members(run_id) if member.role == "train"]
        if trainers and trainers[-1].state == "live":  # it has joined meanwhile
            return
        row = next((row for row in await store.runs() if row.id == run_id), None)
        if row is None:
            raise RunError(f"{store.location} does not have run '{run_id}' any more")
        if row.status == "finished":
            raise RunOver(run_id, row.status)
        resume = f"resume the run with `{self._command('train')}`"
        if row.status == "failed":
            raise RunError(f"run '{run_id}' has failed: {row.error}; {resume}, and start this process again")
        last = f" (the last one, {trainers[-1].name}, {_GONE[trainers[-1].state]})" if trainers else ""
        self._wait.on(f"the trainer{last}", resume)


_GONE = {"lost": "was lost", "left": "has left"}
