"""`agentrl runs gc`: remove old checkpoints, published weights and rotated logs of ended runs."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl_core.cli.find_run import RunsOption, find_run, open_run, places_of
from agentrl_core.cli.output import JsonSwitch, print_json, size_text
from agentrl_core.cli.printing import echo
from agentrl_core.cli.run_facts import status_of
from agentrl_core.cli.run_members import is_gone
from agentrl_core.errors import AgentRLError, RunError, UsageError
from agentrl_core.run.directory import RunDirectory
from agentrl_core.run.leftovers import leftovers

if TYPE_CHECKING:
    from agentrl_core.cli.find_run import RunPlace
    from agentrl_core.run.leftovers import Leftover

_SECONDS = {"d": 86400, "h": 3600, "min": 60, "s": 1}


def register(app: typer.Typer) -> None:
    """Add the command to `agentrl runs`."""
    app.command()(gc)


def gc(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Name of the run, or its folder.")] = None,
    *,
    all_runs: Annotated[bool, typer.Option("--all", help="Tidy up all ended runs of the folder.")] = False,
    keep: Annotated[int, typer.Option("--keep", metavar="N", min=1, help="Newest checkpoints to keep.")] = 1,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Only runs last written before that: 7d, 12h, 30min.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    runs: RunsOption = Path("runs"),
    as_json: JsonSwitch = False,
) -> None:
    """Remove old checkpoints, published weights and rotated logs of ended runs; they can be resumed as before."""
    if (run is None) != all_runs:
        raise UsageError("give the name of one run, or --all")
    before = time.time() - _age_s(older_than)
    places = places_of(runs) if run is None else [find_run(run, runs)]
    with ExitStack() as held:
        found = [
            item for place in places if place.last_write <= before for item in _of_run(place, keep, held, skip=all_runs)
        ]
        total = sum(item.size for item in found)
        if not as_json:
            for item in found:
                echo(f"{item.path}  {item.kind}, {size_text(item.size)}")
            echo(f"{len(found)} to remove, {size_text(total)}" if found else "nothing to remove")
        removing = bool(found) and not dry_run and _confirmed(yes=yes, as_json=as_json)
        for item in found if removing else ():
            try:
                item.remove()
            except OSError as error:
                raise RunError(f"cannot remove {item.path}: {error.strerror}; make it writable") from error
    if as_json:
        listed: list[dict[str, Any]] = [
            {"path": str(item.path), "kind": item.kind, "bytes": item.size} for item in found
        ]
        print_json({"removed": removing, "bytes": total, "items": listed})
    elif removing:
        echo("removed")


def _of_run(place: RunPlace, keep: int, held: ExitStack, *, skip: bool) -> list[Leftover]:
    """Return what may be removed of one run, and hold its lock in `held`, so that nobody resumes it meanwhile.

    A run that goes on or cannot be read raises, or is left out and told with `skip`.
    """
    directory = RunDirectory(place.directory.resolve())
    try:
        with open_run(place) as (store, row):
            status = status_of(place, store, row)
            live = not all(map(is_gone, asyncio.run(store.members(row.id, live=True))))
            if row.status == "running" and (live or status != "killed"):
                raise UsageError(f"run {row.id} is {status}; only ended runs are tidied up")
            steps = asyncio.run(store.steps(row.id))
        held.enter_context(directory.locked())
        return leftovers(directory, steps, keep=keep)
    except AgentRLError as error:
        if not skip:
            raise
        echo(f"left out: {error}", err=True)
        return []


def _confirmed(*, yes: bool, as_json: bool) -> bool:
    if yes:
        return True
    if as_json or not sys.stdin.isatty():
        raise UsageError("nothing is removed: give --yes to remove, or --dry-run to only look")
    return typer.confirm("Remove them?")


def _age_s(text: str) -> float:
    """Return the seconds of `7d`, `12h`, `30min` or `45s`; 0 for an empty text."""
    if not text:
        return 0.0
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(d|h|min|s)", text)
    if found is None:
        raise UsageError(f"--older-than {text}: expected a number with d, h, min or s, such as 7d")
    return float(found[1]) * _SECONDS[found[2]]
