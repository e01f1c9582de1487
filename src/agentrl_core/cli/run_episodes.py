"""`agentrl runs cancel|requeue`: end one running record, and let the task of an unusable group come again."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
import typer

from agentrl_core.cli.find_run import RunArgument, RunsOption, find_run, open_for_control
from agentrl_core.cli.output import JsonSwitch, print_json
from agentrl_core.cli.printing import echo
from agentrl_core.cli.run_members import RECHECK_S, is_gone
from agentrl_core.config.invocation import command_line
from agentrl_core.config.nearest import did_you_mean
from agentrl_core.errors import RunError, UsageError
from agentrl_core.types import BY_USER, Outcome

if TYPE_CHECKING:
    from agentrl_core.api.stores import GroupRow, RunRow, Store
    from agentrl_core.types import Record


def register(app: typer.Typer) -> None:
    """Add the commands to `agentrl runs`."""
    app.command()(cancel)
    app.command()(requeue)


def cancel(
    run: RunArgument,
    record: Annotated[str, typer.Argument(metavar="RECORD", help="Id of a running record, or its first characters.")],
    *,
    wait: Annotated[
        float, typer.Option("--wait", metavar="S", min=0.0, help="Seconds to wait until the record has ended.")
    ] = 30.0,
    runs: RunsOption = Path("runs"),
    as_json: JsonSwitch = False,
) -> None:
    """Cancel one running record; its group may sample the slot again, as after any record without a reward."""
    with open_for_control(find_run(run, runs)) as (store, row):
        found = asyncio.run(_record(store, row, record))
        if found.outcome is not Outcome.RUNNING:
            raise UsageError(f"record {found.id} has ended already ({found.outcome.value}); there is nothing to cancel")
        asyncio.run(_cancelled(store, row, found, wait))
        ended = asyncio.run(_record(store, row, found.id))
    if as_json:
        print_json({"record": ended.id, "outcome": ended.outcome.value, "reason": ended.reason})
    else:
        why = f" ({ended.reason})" if ended.reason else ""
        echo(f"record {ended.id}: {ended.outcome.value}{why}")


def requeue(
    run: RunArgument,
    name: Annotated[
        str, typer.Argument(metavar="RECORD|GROUP", help="Id of a dead or dropped group, or of one of its records.")
    ],
    *,
    runs: RunsOption = Path("runs"),
    as_json: JsonSwitch = False,
) -> None:
    """Let the task of a dead or dropped group be sampled once more at its position, whatever its tries."""
    with open_for_control(find_run(run, runs)) as (store, row):
        group = asyncio.run(_group(store, row, name))
        done = asyncio.run(store.requeue_group(row.id, group.id))
    if not done:
        if group.state in ("dead", "dropped"):
            why = "its position has a later group, or was requeued already"
        else:
            why = f"it is {group.state}; only dead and dropped groups of training come again"
        raise UsageError(f"group {group.id} is not requeued: {why}")
    if as_json:
        print_json({"group": group.id, "task": group.task_id, "index": group.index})
    else:
        echo(f"task {group.task_id} (position {group.index}) comes again")


async def _cancelled(store: Store, row: RunRow, record: Record, wait_s: float) -> None:
    """End a running record: by the member that has its group, or in the store if no process runs it any more."""
    group = next((group for group in await store.groups(row.id) if group.id == record.group_id), None)
    live = {member.id: member for member in await store.members(row.id, live=True)}
    owner = live.get(group.member_id) if group is not None else None
    if owner is None or is_gone(owner):
        await store.finish_record(
            attrs.evolve(record, outcome=Outcome.CANCELLED, reason=BY_USER, finished_at=time.time())
        )
        return
    seen, end = 0, time.monotonic() + wait_s
    await store.set_control(row.id, cancel={record.id: True})
    try:
        while (await _record(store, row, record.id)).outcome is Outcome.RUNNING:
            left = end - time.monotonic()
            if left <= 0:
                raise RunError(
                    f"record {record.id} still runs after {wait_s:g} s at {owner.name}; see "
                    f"`{command_line('runs', 'show', row.id)}`, or give --wait more seconds"
                )
            seen = await store.changed(row.id, seen, timeout_s=min(RECHECK_S, left))
    finally:
        await store.set_control(row.id, cancel={record.id: False})


async def _record(store: Store, row: RunRow, name: str) -> Record:
    episode = await store.episode(name)
    if episode is None or episode.record.run_id != row.id:
        near = did_you_mean(name, [item.id for item in await store.records(row.id)])
        raise UsageError(
            f"no record '{name}' in run {row.id}{near}; `{command_line('trace', 'list', row.id)}` shows them"
        )
    return episode.record


async def _group(store: Store, row: RunRow, name: str) -> GroupRow:
    """Return the group of this id, or of a record of this id; both may be given by their first characters."""
    groups = await store.groups(row.id)
    found = [group for group in groups if group.id.startswith(name)]
    if len(found) > 1 and not (found := [group for group in found if group.id == name]):
        raise UsageError(f"several groups of run {row.id} begin with '{name}'; give more characters")
    if not found and (episode := await store.episode(name)) is not None:
        found = [group for group in groups if group.id == episode.record.group_id]
    if not found:
        raise UsageError(
            f"no group '{name}' in run {row.id}, and no record of a group; `{command_line('runs', 'show', row.id)}` "
            "lists the groups that may be requeued"
        )
    return found[0]
