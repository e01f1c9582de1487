"""`agentrl runs stop|pause|resume|set`: change what the processes of a live run do, and go on with an ended run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentrl_core.cli.find_run import RunArgument, RunsOption, find_directory, find_run, open_for_control
from agentrl_core.cli.output import JsonSwitch, check_learned, only_json, print_json
from agentrl_core.cli.printing import echo
from agentrl_core.cli.run_facts import status_of
from agentrl_core.cli.run_members import confirmed_live, how_to_end, is_gone, wait_until_left
from agentrl_core.config.invocation import command_line
from agentrl_core.errors import AgentRLError, UsageError
from agentrl_core.run.directory import RunDirectory
from agentrl_core.stores.folder_lock import holder

if TYPE_CHECKING:
    from agentrl_core.api.members import Member
    from agentrl_core.api.stores import RunRow, Store
    from agentrl_core.cli.find_run import RunPlace


def register(app: typer.Typer) -> None:
    """Add the commands to `agentrl runs`."""
    for command in (stop, pause, resume):
        app.command()(command)
    app.command("set")(set_)


def stop(
    run: RunArgument,
    *,
    wait: Annotated[
        float, typer.Option("--wait", metavar="S", min=0.0, help="Seconds to wait until all processes have ended.")
    ] = 60.0,
    runs: RunsOption = Path("runs"),
    as_json: JsonSwitch = False,
) -> None:
    """Stop a live run as SIGTERM does: the step ends, a checkpoint is saved; exit code 1 if a process goes on."""
    place = find_run(run, runs)
    with open_for_control(place) as (store, row):
        _check_live(place, store, row, "stop")
        asyncio.run(store.set_control(row.id, wanted="stop"))
        if not as_json:
            echo(f"run {row.id} is to stop; waiting up to {wait:g} s for its processes to end")
        live = asyncio.run(wait_until_left(store, row.id, wait_s=wait))
    if as_json:
        print_json({"name": row.id, "wanted": "stop", "live": [_member(member) for member in live]})
    elif live:
        names = ", ".join(member.name for member in live)
        echo(
            f"error: still there after {wait:g} s: {names}. Its step or checkpoint may take longer: look again with "
            f"`{command_line('runs', 'show', run)}`, or end it without a checkpoint: {how_to_end(live)}",
            err=True,
        )
    else:
        echo(f"run {row.id} has stopped. To resume: {command_line('runs', 'resume', run)}")
    if live:
        raise typer.Exit(1)


def pause(run: RunArgument, *, runs: RunsOption = Path("runs"), as_json: JsonSwitch = False) -> None:
    """Pause a live run: what has begun is finished, and no new episode and no new step begins."""
    place = find_run(run, runs)
    with open_for_control(place) as (store, row):
        _check_live(place, store, row, "pause")
        if asyncio.run(store.control(row.id)).wanted == "stop":
            raise UsageError(f"run {row.id} is stopping already, so it cannot pause")
        asyncio.run(store.set_control(row.id, wanted="pause"))
    if as_json:
        print_json({"name": row.id, "wanted": "pause"})
    else:
        echo(f"run {row.id} pauses. To go on: {command_line('runs', 'resume', run)}")


def resume(
    run: RunArgument,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Options to change from now on, such as trainer.steps=200.")
    ] = None,
    *,
    runs: RunsOption = Path("runs"),
    as_json: JsonSwitch = False,
) -> None:
    """Let a paused run go on, or resume an ended one from its newest checkpoint."""
    if paused := _unpaused(run, runs, overrides or []):
        if as_json:
            print_json({"name": paused, "wanted": "run"})
        else:
            echo(f"run {paused} goes on")
        return
    from agentrl_core.run import resume as resume_run

    with only_json(as_json) as show:
        summary = resume_run(find_directory(run, runs), overrides or ())
        show(summary)
    if summary.status != "finished":
        raise typer.Exit(1)
    check_learned(summary)


def set_(
    run: RunArgument,
    limits: Annotated[
        list[str],
        typer.Argument(metavar="OPTION=VALUE…", help="Options to change; null restores the value of the config."),
    ],
    *,
    runs: RunsOption = Path("runs"),
    as_json: JsonSwitch = False,
) -> None:
    """Change limits of a live run, such as rollout.max_concurrent_rollouts=64; they hold after it is resumed, too."""
    from agentrl_core.config.live import LIVE_OPTIONS, read_limits

    place = find_run(run, runs)
    directory = RunDirectory(place.directory)
    with open_for_control(place) as (store, row):
        _check_live(place, store, row, "set limits of")
        values = read_limits(directory.read_snapshot()[0], limits)
        control = asyncio.run(store.set_control(row.id, limits=values))
    if as_json:
        print_json({"name": row.id, "limits": control.limits})
        return
    for path, value in values.items():
        what = "as in the config again" if value is None else f"{value:g}"
        echo(f"{path}: {what}, {LIVE_OPTIONS[path]}")


def _check_live(place: RunPlace, store: Store, row: RunRow, action: str) -> None:
    """Raise `UsageError` if no process of the run follows its control any more."""
    status = status_of(place, store, row)
    if row.status != "running":
        raise UsageError(
            f"run {row.id} is {status}, so there is nothing to {action}; to go on with it: "
            f"{command_line('runs', 'resume', row.id)}"
        )
    members = asyncio.run(store.members(row.id))
    if not any(member.state == "live" and not is_gone(member) for member in members):
        end = f"; end it with: kill {pid}" if (pid := holder(place.directory)) else ""
        raise UsageError(f"run {row.id} ({status}) has no live process that could {action} it{end}")


def _unpaused(run: str, runs: Path, overrides: list[str]) -> str:
    """Let a paused live run go on, and return its name; empty for a run that has to be resumed from its checkpoint.

    Raises `UsageError` for a run that goes on already, and for one whose samplers or servers wait for their trainer.
    """
    place = find_run(run, runs)
    try:
        with open_for_control(place) as (store, row):
            control = asyncio.run(store.control(row.id))
            live = [] if row.status != "running" else asyncio.run(confirmed_live(store, row.id, notice=_notice))
            trainer = next((member.name for member in live if member.role == "train"), "")
            if trainer and control.wanted == "pause" and not overrides:
                asyncio.run(store.set_control(row.id, wanted="run"))
                return row.id
    except AgentRLError:  # to resume it opens the store, too, with the overrides, and says what is wrong with it
        return ""
    if not live:
        return ""
    if not trainer:
        # One process that samples and trains would publish no weights for these servers.
        raise UsageError(
            f"run {row.id} has lost its trainer, and {', '.join(member.name for member in live)} wait for it: start it "
            f"with `{command_line('train', 'CONFIG', '--name', row.id)}`, or end them first: "
            f"{command_line('runs', 'stop', run)}"
        )
    if overrides:
        raise UsageError(
            f"run {row.id} has a live process ({trainer}), so it takes no overrides; change limits with "
            f"`{command_line('runs', 'set', run, 'OPTION=VALUE')}`, or stop it first: "
            f"{command_line('runs', 'stop', run)}"
        )
    state = "is stopping" if control.wanted == "stop" else "goes on already"
    raise UsageError(f"run {row.id} {state} ({trainer}), so there is nothing to resume")


def _notice(line: str) -> None:
    echo(line, err=True)


def _member(member: Member) -> dict[str, Any]:
    return {"role": member.role, "host": member.host, "pid": member.pid, "id": member.id}
