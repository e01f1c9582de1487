"""Facts of one run for `runs list` and `runs show`: progress, members, groups, control, checkpoint and disk use."""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.cli.run_members import is_gone
from agentrl_core.run.directory import RunDirectory
from agentrl_core.stores.folder_lock import is_abandoned
from agentrl_core.types import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.api.stores import GroupRow, RunReader, RunRow, StepRow
    from agentrl_core.cli.find_run import RunPlace
    from agentrl_core.types import Record

_WANTED = {"pause": "paused", "stop": "stopping"}
"""`RunControl.wanted` -> status that is shown of a run that goes on."""


def progress_facts(place: RunPlace, store: RunReader, row: RunRow, steps: Sequence[StepRow]) -> dict[str, Any]:
    """Return a run's status, steps, version and newest reward or loss."""
    live = [step for step in steps if not step.voided]
    return {
        "name": row.id,
        "status": status_of(place, store, row),
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


def status_of(place: RunPlace, store: RunReader, row: RunRow) -> str:
    """Return the status of a run; `killed` if the process that trains it ended without writing one.

    That happens after kill -9 or when the machine goes down. The store then still says `running`. A run that goes on
    and that people paused or stopped is `paused` or `stopping`.
    """
    if row.status != "running":
        return row.status
    if is_abandoned(place.directory):
        now = next((each.status for each in asyncio.run(store.runs()) if each.id == row.id), row.status)
        # The run may have ended normally between the reading of `row` and the look at its lock, so read again.
        return "killed" if now == "running" else now
    return _WANTED.get(asyncio.run(store.control(row.id)).wanted, row.status)


def member_facts(store: RunReader, row: RunRow) -> list[dict[str, Any]]:
    """Return the members in the order in which they joined; a live one whose process is gone is `gone`."""
    return [
        attrs.asdict(member) | {"state": "gone" if is_gone(member) else member.state}
        for member in asyncio.run(store.members(row.id))
    ]


def group_facts(
    groups: Sequence[GroupRow], records: Sequence[Record], steps: Sequence[StepRow], requeue: int
) -> dict[str, Any]:
    """Return the number of groups by state, and the groups whose positions do not come again by themselves.

    Groups that a step has taken are `trained`, or `filtered` if no record of them was trained. Those that do not come
    again are `dead` groups, and dropped ones whose position has had all of its `rollout.requeue` tries.
    """
    training = [group for group in groups if not group.is_eval]
    unusable = {
        group.id: group
        for group in training
        if group.state == "dead" or (group.state == "dropped" and group.tries >= requeue)
    }
    # A later group of the same position, made by `runs requeue`, is a new chance.
    newest = {group.index: group.id for group in training if group.state != "aside"}
    endings: dict[str, Counter[str]] = {group: Counter() for group in unusable}
    for record in records:
        if record.group_id in unusable and record.outcome is not Outcome.SCORED:
            endings[record.group_id][outcome_name(record)] += 1
    return {
        "states": _states(training, records, steps),
        "evaluation": dict(Counter(group.state for group in groups if group.is_eval)),
        "dead": [
            {
                "group": group.id,
                "task": group.task_id,
                "index": group.index,
                "state": group.state,
                "why": _why(group, endings[group.id]),
            }
            for group in unusable.values()
            if newest.get(group.index) == group.id
        ],
    }


def _states(groups: Sequence[GroupRow], records: Sequence[Record], steps: Sequence[StepRow]) -> dict[str, int]:
    of_steps = {record for step in steps if not step.voided for record in step.records}
    trained = {record.group_id for record in records if record.id in of_steps}
    return dict(
        Counter("filtered" if group.state == "trained" and group.id not in trained else group.state for group in groups)
    )


def _why(group: GroupRow, endings: Mapping[str, int]) -> str:
    told = ", ".join(f"{name} {count}" for name, count in sorted(endings.items(), key=lambda item: -item[1]))
    lost = f"lost {group.takeovers} members" if group.state == "dead" else "too few scored records"
    return f"{lost}: {told}" if told else lost


def outcome_name(record: Record) -> str:
    """Return a record's outcome, with its reason if it has one."""
    return record.outcome.value + (f"({record.reason})" if record.reason else "")


def newest_checkpoint(directory: Path) -> dict[str, Any] | None:
    """Return step, folder and digest of the newest checkpoint by its manifest; None without one.

    The weights are not read; a manifest that is damaged or missing gives an empty digest.
    """
    from agentrl_core.weights.manifest import peek_manifest

    for step, path in RunDirectory(directory).all_checkpoints():
        try:
            manifest = peek_manifest(path)
        except ValueError:
            manifest = None
        return {"step": step, "folder": str(path), "digest": "" if manifest is None else manifest.digest}
    return None


def disk_use(directory: Path) -> dict[str, int]:
    """Return the bytes of a run's folder by its entries: `checkpoints`, `agentrl.db` with its log, and so on."""
    sizes: Counter[str] = Counter()
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118  # as os.walk gives it
            entry = Path(path).relative_to(directory).parts[0]
            try:
                sizes[re.sub(r"-(wal|shm|journal)$", "", entry)] += os.lstat(path).st_size
            except FileNotFoundError:  # the run removes old checkpoints meanwhile
                continue
    return dict(sizes.most_common())
