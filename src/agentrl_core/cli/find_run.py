"""Find a run by its name, folder or database file (default: the newest one), and open its store for reading."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import attrs
import typer

from agentrl_core.config.invocation import command_line
from agentrl_core.config.nearest import did_you_mean
from agentrl_core.errors import AgentRLError, UsageError
from agentrl_core.run.directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentrl_core.api.stores import RunReader, RunRow, Store
    from agentrl_core.types import Episode, Task

RunsOption: TypeAlias = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder that holds the runs.")]
RunArgument: TypeAlias = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run, or its folder.")]


_NEAREST = 3
"""Number of names that a message about an unknown run shows."""


@attrs.frozen
class RunPlace:
    """Place of a run: its folder, and a database file if the user named one."""

    directory: Path
    file: Path | None = None

    @property
    def last_write(self) -> float:
        """Time of the run's last write in Unix seconds, as its own files tell."""
        database = self.file or RunDirectory(self.directory).database
        if not database.is_file():  # the store is elsewhere, so the other files have to tell
            files = [self.directory, *self.directory.glob("*"), *self.directory.glob("logs/*")]
            return max(map(_last_change, files))
        written = _last_change(database)
        # Recent writes of SQLite are in its write-ahead log.
        with contextlib.suppress(FileNotFoundError):
            found = database.with_name(f"{database.name}-wal").stat()
            if found.st_size:  # a reader that writes nothing leaves an empty log with a new time
                written = max(written, found.st_mtime)
        return written

    def model_directory(self, row: RunRow) -> Path | None:
        """Return a folder with the run's tokenizer and chat template, from the run itself or from its config.

        None if none of them exists any more.
        """
        folders = [self.directory / "model", *sorted((self.directory / "checkpoints").glob("step-*"))]
        snapshot, named = self.directory / "config.json", (row.config.get("model") or {}).get("path")
        if named and snapshot.is_file():
            base_dir = json.loads(snapshot.read_text(encoding="utf-8"))["base_dir"]
            folders.append(Path(base_dir) / Path(named).expanduser())
        return next((folder for folder in folders if (folder / "tokenizer.json").is_file()), None)


def _last_change(path: Path) -> float:
    """Return the time of a file's last change in Unix seconds; 0 if it vanished after the folder was listed."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


@attrs.frozen(kw_only=True)
class FoundEpisode:
    """A stored episode, with its run and the open store."""

    episode: Episode
    place: RunPlace
    store: RunReader
    row: RunRow

    def task(self) -> Task | None:
        """Return the task of the episode; None if the store does not have its row."""
        record = self.episode.record
        of_set = asyncio.run(self.store.tasks(self.row.id, task_set=record.task_set))
        return next((task for task in of_set if task.id == record.task_id), None)


def find_directory(run: str, runs: Path) -> Path:
    """Return the folder of a run, given its name in `runs`, its path or the path of a file in it.

    Raises `UsageError`, with similar names, if there is no such run.
    """
    for path in (runs / run, Path(run)):
        if path.is_dir():
            return path
        if path.is_file():
            return path.parent
    names = sorted(place.directory.name for place in places_of(runs))
    nearest = difflib.get_close_matches(run, names, n=_NEAREST, cutoff=0.0)
    known = did_you_mean(run, names) or (
        f" (the nearest there: {', '.join(nearest)})" if nearest else f" ({runs} has no runs)"
    )
    raise UsageError(
        f"no run '{run}' in {runs}{known}; give a name that `{command_line('runs', 'list')}` prints, or a folder"
    )


def places_of(runs: Path) -> list[RunPlace]:
    """Return all runs, sorted by last write, the newest last."""
    folders = [path for path in runs.glob("*") if is_run(path)]
    return sorted(map(RunPlace, folders), key=lambda place: place.last_write)


def find_run(run: str | None, runs: Path) -> RunPlace:
    """Return the place of `run`, or of the run that was written last if `run` is None."""
    if run is None:
        places = places_of(runs)
        if not places:
            raise UsageError(
                f"no runs in {runs.absolute()}; start one with `{command_line('run', 'CONFIG')}`, or give --runs DIR"
            )
        return places[-1]
    if (named := Path(run)).is_file():
        return RunPlace(named.parent, named)
    directory = find_directory(run, runs)
    if not is_run(directory):
        raise UsageError(
            f"{directory} contains no {RunDirectory(directory).database.name} and no config.json of a run: "
            "it is not a run directory"
        )
    return RunPlace(directory)


@contextlib.contextmanager
def open_episode(record: str, run: str | None, runs: Path) -> Iterator[FoundEpisode]:
    """Open the store that has a record, given its id or the first characters of it, and yield it with the episode.

    Without `run`, that is the newest run that contains the record. Raises `UsageError` if no run contains it.
    """
    places = [find_run(run, runs)] if run else places_of(runs)[::-1] or [find_run(None, runs)]
    known: list[str] = []
    broken: list[str] = []
    for place in places:
        with contextlib.ExitStack() as closing:
            try:
                store, row = closing.enter_context(open_run(place))
                episode = asyncio.run(store.episode(record))
                # Runs may share a database, which then has the records of all of them.
                if episode is None or episode.record.run_id != row.id:
                    known += [item.id for item in asyncio.run(store.records(row.id))]
                    continue
            except AgentRLError as error:
                if run:
                    raise
                broken.append(f"; {error}")  # another run may contain it
                continue
            yield FoundEpisode(episode=episode, place=place, store=store, row=row)
            return
    raise UsageError(
        f"no record '{record}' in {f'run {row.id}' if run else f'any run of {runs}'}{did_you_mean(record, known)}; "
        f"`{command_line('trace', 'list', row.id if run else 'RUN')}` shows a run's records"
        f"{'; --run selects another run' if run else ''}{''.join(broken)}"
    )


@contextlib.contextmanager
def open_run(place: RunPlace) -> Iterator[tuple[RunReader, RunRow]]:
    """Open the store of a run for reading, and yield it with the run's row; the run may still be going.

    A folder that was renamed is recognised if its database has one run only.
    """
    from agentrl_core.run.stores import open_reader

    directory = RunDirectory(place.directory)
    reader = open_reader(directory, place.file)
    try:
        rows = asyncio.run(reader.runs())
        if not rows:
            raise UsageError(f"{reader.location}: this database does not contain a run yet")
        name = directory.path.absolute().name
        named = [row for row in rows if row.id == name] or rows
        if len(named) > 1:
            raise UsageError(
                f"{reader.location}: none of its {len(rows)} runs is called '{name}', like the folder "
                f"{place.directory}; give the folder the name of its run"
            )
        yield reader, named[0]
    finally:
        asyncio.run(reader.close())


@contextlib.contextmanager
def open_for_control(place: RunPlace) -> Iterator[tuple[Store, RunRow]]:
    """Open the store of a run for changes of its control, and yield it with the run's row; the run may be going."""
    from agentrl_core.run import stores

    # Read first: a writer would create a database that is missing.
    with open_run(place) as (_, row):
        store = stores.open_for_control(RunDirectory(place.directory))
        try:
            yield store, row
        finally:
            asyncio.run(store.close())


def is_run(path: Path) -> bool:
    """Return whether a folder has what a run writes first: its config snapshot or its database."""
    directory = RunDirectory(path)
    if directory.database.is_file():
        return True
    try:  # the folder of a model has a file of the same name
        directory.read_snapshot()
    except UsageError:
        return False
    return True
