"""Find the run that a server or a sampler takes part in, and notice the run's end."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from agentrl_core.config.invocation import command_line
from agentrl_core.errors import UsageError
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


@attrs.frozen(kw_only=True)
class Commands:
    """Command lines that start the members of one run."""

    config: str
    name: str

    @classmethod
    def of(cls, config: str | os.PathLike[str], loaded: LoadedConfig[RunConfig]) -> Commands:
        """Return the command lines for a config file and the run that it names."""
        return cls(config=str(config), name=loaded.run.name or "RUN")

    def __call__(self, role: Role) -> str:
        """Return the command line of a role."""
        return command_line(role, self.config, "--name", self.name)


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
    components: RunComponents, directory: RunDirectory, identity: str, *, writes: bool = False
) -> WeightsPlace:
    """Return the place of a run's published weights: `weights.place`, with a folder for each run, or the run's own.

    With `writes`, versions are written as the section `weights` says, which raises `ConfigError` for what it cannot.
    """
    config = components.config.weights
    root = directory.weights(config.place, components.base_dir, identity)
    if not writes:
        return WeightsPlace(root)
    check_through_place(components)
    deltas = None
    if config.publish.use == "delta":
        options = dict(config.publish.options)
        where = components.where("weights.publish")
        deltas = construct(
            DeltaWriter, options, name="delta", where=where, injected={"local": local_weights(components)}
        )
    return WeightsPlace(root, dtype=config.dtype, deltas=deltas)


def local_weights(components: RunComponents) -> Path | None:
    """Return the folder for whole copies of versions on this machine; None: the system's temporary folder."""
    local = components.config.weights.local
    return None if local is None else components.base_dir / Path(local).expanduser()


async def find_run(components: RunComponents, directory: RunDirectory, wait: Wait, command: Commands) -> FoundRun:
    """Wait until the run's trainer has joined it, and open its store; the caller closes the store."""
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

    async def look(self, members: Sequence[Member]) -> str:
        """Return how the run has ended, and an empty text while it goes on; `RunError` if it lacks a trainer too long.

        `members` are the live ones. A trainer that was killed or interrupted may come back, so its run has not ended.
        """
        store, run_id = self._run.store, self._run.row.id
        status = next((row.status for row in await store.runs() if row.id == run_id), "gone")
        if status in ("finished", "failed", "gone"):
            return status
        if any(member.role == "train" for member in members):
            self._wait.over()
        else:
            trainers = [member for member in await store.members(run_id) if member.role == "train"]
            if trainers and trainers[-1].state == "live":  # it has joined meanwhile
                return ""
            last = f" (the last one, {trainers[-1].name}, {_GONE[trainers[-1].state]})" if trainers else ""
            self._wait.on(f"the trainer{last}", f"resume the run with `{self._command('train')}`")
        return ""


_GONE = {"lost": "was lost", "left": "has left"}
