"""`agentrl runs`: lists runs with their status, shows one of them, and resumes it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl_core.api.stores import IDENTITY
from agentrl_core.cli.find_run import RunsOption, find_directory, find_run, open_run, places_of
from agentrl_core.cli.output import print_json, print_table
from agentrl_core.errors import AgentRLError
from agentrl_core.stores.folder_lock import is_abandoned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.api.stores import RunReader, RunRow, StepRow
    from agentrl_core.cli.find_run import RunPlace

app = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True)

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Run = Annotated[str, typer.Argument(help="Name of the run, or its folder.")]

_LAST_STEPS = 10  # rows in the table of `runs show`


@app.callback()
def runs() -> None:
    """List, show and resume runs."""


@app.command("list")
def list_(*, runs: RunsOption = Path("runs"), as_json: _Json = False) -> None:
    """List the runs, the newest last."""
    found = [_summary(place) for place in places_of(runs)]
    if as_json:
        print_json(found)
    elif not found:
        typer.echo(f"no runs in {runs.absolute()}")
    else:
        print_table(("NAME", "STATUS", "STEPS", "REWARD", "VERSION", "LAST WRITE"), [_row(item) for item in found])


@app.command()
def show(run: _Run, *, runs: RunsOption = Path("runs"), as_json: _Json = False) -> None:
    """Show one run: status, steps, last reward, records by outcome, components."""
    place = find_run(run, runs)
    with open_run(place) as (store, row):
        steps = asyncio.run(store.steps(row.id))
        records = asyncio.run(store.records(row.id))
        facts = _facts(place, store, row, steps)
        facts["head"] = next((seal.digest for seal in asyncio.run(store.seals(row.id, newest=1))), None)
    outcomes = Counter(record.outcome.value + (f"({record.reason})" if record.reason else "") for record in records)
    if as_json:
        details = {"outcomes": dict(outcomes), "components": row.components, "config": row.config, "all_steps": steps}
        print_json(facts | details)
        return
    typer.echo(f"run {row.id}: {facts['status']}" + (f" ({row.error})" if row.error else ""))
    typer.echo(f"  folder      {facts['directory']}")
    typer.echo(f"  started     {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(row.created_at))}")
    typer.echo(f"  steps       {facts['steps']} ({facts['voided_steps']} voided), policy version {facts['version']}")
    for section in ("model", "loss", "advantage"):
        if chosen := _chosen(row.config.get(section)):
            typer.echo(f"  {section:<11} {chosen}")
    name, value = ("last loss", facts["loss"]) if _is_supervised(facts) else ("reward", facts["reward"])
    typer.echo(f"  {name:<11} {_number(value)} in the last step")
    typer.echo(f"  records     {', '.join(f'{name} {count:,}' for name, count in outcomes.most_common()) or 'none'}")
    if facts["head"]:
        typer.echo(f"  sealed      head {facts['head']}")
    for name, source in sorted(row.components.items()):
        if name != IDENTITY:
            typer.echo(f"  component   {name} = {source}")
    if steps:
        typer.echo("")
        print_table(("STEP", "VERSION", "REWARD", "RECORDS", ""), [_step_row(step) for step in steps[-_LAST_STEPS:]])


@app.command()
def resume(
    run: _Run,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Options to change from now on, such as trainer.steps=200.")
    ] = None,
    *,
    runs: RunsOption = Path("runs"),
) -> None:
    """Resume a run from its newest checkpoint."""
    from agentrl_core.run import resume as resume_run

    summary = resume_run(find_directory(run, runs), overrides or ())
    if summary.status != "finished":
        raise typer.Exit(1)


def _chosen(section: object) -> str:
    """Return the component that a section of the config names, with its options; empty if it names none."""
    if not isinstance(section, dict):
        return ""
    given = {name: value for name, value in section.items() if value not in (None, {}, [])}
    name = given.pop("use", None) or given.pop("path", "")
    options = ", ".join(f"{key} {value}" for key, value in given.items())
    return f"{name} ({options})" if name and options else str(name)


def _summary(place: RunPlace) -> dict[str, Any]:
    """Return a summary of one run; an unreadable store gives its name and the reason."""
    try:
        with open_run(place) as (store, row):
            return _facts(place, store, row, asyncio.run(store.steps(row.id)))
    except AgentRLError as error:
        return {"name": place.directory.name, "status": f"unreadable: {error}", "last_write": place.last_write}


def _facts(place: RunPlace, store: RunReader, row: RunRow, steps: Sequence[StepRow]) -> dict[str, Any]:
    live = [step for step in steps if not step.voided]
    return {
        "name": row.id,
        "status": _status(place, store, row),
        "error": row.error,
        "directory": str(place.directory),
        "created_at": row.created_at,
        "last_write": place.last_write,
        "steps": live[-1].step if live else 0,
        "voided_steps": len(steps) - len(live),
        "version": asyncio.run(store.last_version(row.id)),
        "reward": live[-1].metrics.get("reward/mean") if live else None,
        "loss": live[-1].metrics.get("loss/value") if live else None,
    }


def _status(place: RunPlace, store: RunReader, row: RunRow) -> str:
    """Return the status of a run; `killed` if its process ended without writing one.

    That happens after kill -9 or when the machine goes down. The store then still says `running`.
    """
    if row.status != "running" or not is_abandoned(place.directory):
        return row.status
    now = next((each.status for each in asyncio.run(store.runs()) if each.id == row.id), row.status)
    # The run may have ended normally between the reading of `row` and the look at its lock, so read again.
    return "killed" if now == "running" else now


def _row(facts: Mapping[str, Any]) -> tuple[str, ...]:
    if "steps" not in facts:
        return (facts["name"], facts["status"], "", "", "", _age(facts["last_write"]))
    outcome = f"loss {_number(facts['loss'])}" if _is_supervised(facts) else _number(facts["reward"])
    numbers = (str(facts["steps"]), outcome, str(facts["version"]))
    return (facts["name"], facts["status"], *numbers, _age(facts["last_write"]))


def _step_row(step: StepRow) -> tuple[str, ...]:
    reward = _number(step.metrics.get("reward/mean"))
    return (str(step.step), str(step.version), reward, str(len(step.records)), "voided" if step.voided else "")


def _is_supervised(facts: Mapping[str, Any]) -> bool:
    """True for a run of `agentrl sft`: its steps have a loss and no rewards."""
    return facts["reward"] is None and facts["loss"] is not None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _age(moment: float) -> str:
    """Return how long ago `moment` was, in the largest unit that fits."""
    seconds = max(0.0, time.time() - moment)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
