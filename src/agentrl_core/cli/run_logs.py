"""`agentrl runs logs`: print the log files of a run's processes, each line once, and follow them."""

from __future__ import annotations

import re
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
import typer

from agentrl_core.cli.find_run import RunArgument, RunsOption, find_run, open_run
from agentrl_core.cli.output import JsonSwitch, print_json_line
from agentrl_core.cli.printing import echo
from agentrl_core.errors import UsageError
from agentrl_core.run.directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentrl_core.cli.find_run import RunPlace

_RECHECK_S = 0.5
"""Period at which `--follow` looks at the files: a file has no event that every system offers."""
_ENTRY = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) (\w+) (\S+?): (.*)", re.DOTALL)
"""One log entry as `RunDirectory.logging_to` writes it; further lines, such as a traceback's, belong to it."""


def register(app: typer.Typer) -> None:
    """Add the command to `agentrl runs`."""
    app.command()(logs)


def logs(
    run: RunArgument,
    *,
    role: Annotated[
        str, typer.Option("--role", metavar="ROLE", help="Only the logs of train (or run), sample or serve.")
    ] = "",
    count: Annotated[int, typer.Option("-n", "--lines", metavar="N", min=0, help="Number of last entries.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    runs: RunsOption = Path("runs"),
    as_json: JsonSwitch = False,
) -> None:
    """Print the last log entries of a run's processes, by time."""
    place = find_run(run, runs)
    files = _log_files(place, role)
    show = _print_as_json if as_json else _print_with_source if len(files) > 1 else _print
    tails = [_Tail(path) for path in files]
    recent: deque[Entry] = deque(sorted(_entries(tails, final=not follow)), maxlen=count)
    for entry in recent:
        show(entry)
    while follow:
        ended = _has_ended(place)  # before the files, so that what a run wrote last is shown
        tails += map(_Tail, set(_log_files(place, role)) - {tail.path for tail in tails})
        for entry in sorted(_entries(tails, final=ended)):
            show(entry)
        if ended:
            return
        time.sleep(_RECHECK_S)


@attrs.frozen(order=True)
class Entry:
    """One log entry: its time as text, which sorts, its file and its lines."""

    time: str
    source: str = attrs.field(order=False)
    text: str = attrs.field(order=False)


@attrs.define
class _Tail:
    """Reader of one log file that returns the entries that were added since the last call."""

    path: Path
    _read: int = 0
    """Bytes of the file that were returned as lines."""

    def read(self, *, final: bool) -> Iterator[Entry]:
        """Yield the new entries; without `final`, an incomplete last line waits for the next call."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            added = file.read()
        whole = added if final else added[: added.rfind(b"\n") + 1]
        self._read += len(whole)
        time_of_entry, block = "", list[str]()
        for line in whole.decode(errors="replace").removesuffix("\n").split("\n") if whole else ():
            found = _ENTRY.match(line)
            if found and block:
                yield Entry(time_of_entry, self.path.stem, "\n".join(block))
                block = []
            time_of_entry = found[1] if found else time_of_entry
            block.append(line)
        if block:
            yield Entry(time_of_entry, self.path.stem, "\n".join(block))


def _entries(tails: Sequence[_Tail], *, final: bool) -> Iterator[Entry]:
    for tail in tails:
        yield from tail.read(final=final)


def _log_files(place: RunPlace, role: str) -> list[Path]:
    """Return a run's log files; raise `UsageError` if it has none, or none of this role."""
    folder = RunDirectory(place.directory).log("run").parent
    found = sorted(folder.glob("*.log"))
    wanted = "run" if role == "train" else role  # whichever command trains writes the same log
    chosen = [path for path in found if not wanted or _role(path) == wanted]
    if not chosen:
        roles = sorted(set(map(_role, found)))
        there = f"; there are logs of {', '.join(roles)}" if roles else ""
        raise UsageError(f"{folder} has no log{f' of {role}' if role else ''}{there}")
    return chosen


def _role(path: Path) -> str:
    """Return the role of a log's process; a process of its own adds host and pid, as in `serve-node7_4711.log`."""
    return re.split("[-_]", path.stem, maxsplit=1)[0]


def _has_ended(place: RunPlace) -> bool:
    from agentrl_core.cli.run_facts import status_of

    with open_run(place) as (store, row):
        return status_of(place, store, row) not in ("running", "paused", "stopping")


def _print(entry: Entry) -> None:
    echo(entry.text)


def _print_with_source(entry: Entry) -> None:
    echo(f"{entry.source} | {entry.text}")


def _print_as_json(entry: Entry) -> None:
    found = _ENTRY.match(entry.text)
    level, logger, message = (found[2], found[3], found[4]) if found else ("", "", entry.text)
    print_json_line({"file": entry.source, "time": entry.time, "level": level, "logger": logger, "message": message})
