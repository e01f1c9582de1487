"""`agentrl runs`: lists runs with their status and shows one of them; its other commands are in modules beside it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from agentrl_core.api.stores import IDENTITY, ORIGIN
from agentrl_core.cli import run_control, run_episodes, run_fork, run_gc, run_logs
from agentrl_core.cli.find_run import RunArgument, RunsOption, find_run, open_run, places_of
from agentrl_core.cli.output import JsonSwitch, print_json, print_table, size_text
from agentrl_core.cli.printing import echo
from agentrl_core.cli.run_facts import (
    disk_use,
    group_facts,
    member_facts,
    newest_checkpoint,
    outcome_name,
    progress_facts,
)
from agentrl_core.errors import AgentRLError
from agentrl_core.run.no_signal import has_no_signal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.api.stores import StepRow
    from agentrl_core.cli.find_run import RunPlace

app = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True)

_LAST_STEPS = 10  # rows in the table of `runs show`
_DEAD_SHOWN = 10  # lines about dead groups in `runs show`


@app.callback()
def runs() -> None:
    """List, show, control and tidy up runs."""


@app.command("list")
def list_(*, runs: RunsOption = Path("runs"), as_json: JsonSwitch = False) -> None:
    """List the runs, the newest last."""
    found = [_summary(place) for place in places_of(runs)]
    if as_json:
        print_json(found)
    elif not found:
        echo(f"no runs in {runs.absolute()}")
    else:
        print_table(("NAME", "STATUS", "STEPS", "REWARD", "VERSION", "LAST WRITE"), [_row(item) for item in found])


@app.command()
def show(run: RunArgument, *, runs: RunsOption = Path("runs"), as_json: JsonSwitch = False) -> None:
    """Show one run: status, members, groups, limits, outcomes and marks, checkpoint, disk use, components, steps."""
    place = find_run(run, runs)
    with open_run(place) as (store, row):
        steps = asyncio.run(store.steps(row.id))
        records = asyncio.run(store.records(row.id))
        facts = progress_facts(place, store, row, steps)
        requeue = int(((row.config.get("rollout") or {}).get("requeue")) or 0)
        control = asyncio.run(store.control(row.id))
        head = next((seal.digest for seal in asyncio.run(store.seals(row.id, newest=1))), None)
        facts |= {
            "members": member_facts(store, row),
            "groups": group_facts(asyncio.run(store.groups(row.id)), records, steps, requeue),
            "control": control,
            "origin": row.components.get(ORIGIN, ""),
            "head": head,
            "checkpoint": newest_checkpoint(place.directory),
            "disk_bytes": disk_use(place.directory),
        }
    outcomes = dict(Counter(map(outcome_name, records)).most_common())
    marks = dict(Counter(mark for record in records for mark in record.marks).most_common())
    if as_json:
        details = {"components": row.components, "config": row.config, "all_steps": steps}
        print_json(facts | {"outcomes": outcomes, "marks": marks} | details)
        return
    echo(f"run {row.id}: {facts['status']}" + (f" ({row.error})" if row.error else ""))
    lines: list[tuple[str, str]] = [
        ("folder", facts["directory"]),
        ("started", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.created_at))),
        ("steps", f"{facts['steps']} ({facts['voided_steps']} voided), policy version {facts['version']}"),
        *((section, _chosen(row.config.get(section))) for section in ("model", "loss", "advantage")),
        ("began from", facts["origin"]),
        ("last loss" if _is_supervised(facts) else "reward", f"{_number(_outcome(facts))} in the last step"),
        ("learned", _learned([step for step in steps if not step.voided])),
        ("records", _counts(outcomes) or "none"),
        ("marks", _counts(marks)),
        ("groups", _counts(facts["groups"]["states"])),
        ("sealed", f"head {head}" if head else ""),
        ("limits", ", ".join(f"{path}={value:g}" for path, value in sorted(control.limits.items()))),
        ("checkpoint", _checkpoint(facts["checkpoint"])),
        ("disk", _disk(facts["disk_bytes"])),
        *(
            ("component", f"{name} = {source}")
            for name, source in sorted(row.components.items())
            if name not in (IDENTITY, ORIGIN)
        ),
    ]
    for name, value in lines:
        if value:
            echo(f"  {name:<11} {value}")
    if facts["members"]:
        echo("")
        print_table(
            ("MEMBER", "STATE", "HOST", "PROCESS", "VERSION", "WAITS FOR"), [_member(item) for item in facts["members"]]
        )
    _print_dead(facts["groups"]["dead"], row.id)
    if steps:
        echo("")
        print_table(("STEP", "VERSION", "REWARD", "RECORDS", ""), [_step_row(step) for step in steps[-_LAST_STEPS:]])


for _module in (run_logs, run_control, run_episodes, run_fork, run_gc):
    _module.register(app)


def _print_dead(dead: list[dict[str, Any]], run: str) -> None:
    if not dead:
        return
    echo(f"\nunusable groups that do not come again by themselves ({len(dead)}); `runs requeue {run} GROUP`:")
    for group in dead[:_DEAD_SHOWN]:
        echo(f"  {group['group']}  task {group['task'] or '-'}  {group['state']}: {group['why']}")
    if len(dead) > _DEAD_SHOWN:
        echo(f"  and {len(dead) - _DEAD_SHOWN} more (--json lists all)")


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
            return progress_facts(place, store, row, asyncio.run(store.steps(row.id)))
    except AgentRLError as error:
        return {"name": place.directory.name, "status": f"unreadable: {error}", "last_write": place.last_write}


def _row(facts: Mapping[str, Any]) -> tuple[str, ...]:
    if "steps" not in facts:
        return (facts["name"], facts["status"], "", "", "", _age(facts["last_write"]))
    outcome = f"loss {_number(facts['loss'])}" if _is_supervised(facts) else _number(facts["reward"])
    numbers = (str(facts["steps"]), outcome, str(facts["version"]))
    return (facts["name"], facts["status"], *numbers, _age(facts["last_write"]))


def _step_row(step: StepRow) -> tuple[str, ...]:
    reward = _number(step.metrics.get("reward/mean"))
    return (str(step.step), str(step.version), reward, str(len(step.records)), "voided" if step.voided else "")


def _member(facts: Mapping[str, Any]) -> tuple[str, ...]:
    report = facts["report"]
    version = report.get("version")
    return (
        facts["role"],
        facts["state"],
        facts["host"],
        str(facts["pid"]),
        "-" if version is None else str(version),
        str((facts["state"] == "live" and report.get("waits_for")) or "-"),
    )


def _learned(steps: Sequence[StepRow]) -> str:
    """Say in how many steps there was something to learn from, if not in all."""
    count = sum(not has_no_signal(step.metrics) for step in steps)
    if count == len(steps):
        return ""
    return f"in {count} of {len(steps)} steps" if count else f"nothing: none of {len(steps)} steps had a signal"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _checkpoint(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    return f"{found['folder']}" + (f" (digest {found['digest'][:16]})" if found["digest"] else "")


def _disk(sizes: Mapping[str, int]) -> str:
    parts = ", ".join(f"{name} {size_text(size)}" for name, size in sizes.items() if 100 * size >= sum(sizes.values()))
    return f"{size_text(sum(sizes.values()))} ({parts})" if sizes else ""


def _is_supervised(facts: Mapping[str, Any]) -> bool:
    """True for a run of `agentrl sft`: its steps have a loss and no rewards."""
    return facts["reward"] is None and facts["loss"] is not None


def _outcome(facts: Mapping[str, Any]) -> float | None:
    value: float | None = facts["loss"] if _is_supervised(facts) else facts["reward"]
    return value


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _age(moment: float) -> str:
    """Return how long ago `moment` was, in the largest unit that fits."""
    seconds = max(0.0, time.time() - moment)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
