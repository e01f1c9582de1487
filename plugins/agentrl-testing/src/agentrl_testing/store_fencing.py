"""Conformance tests of stores: a trainer that was declared lost, and has a successor, changes nothing any more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from agentrl_core.api.stores import SealRow, Store
from agentrl_core.errors import MemberError
from agentrl_core.types import Outcome
from agentrl_testing.base import ConformanceSuite
from agentrl_testing.store_values import add_record, claim, join, sampling_run, step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agentrl_core.api.claims import GroupClaim

WRITES: dict[str, Callable[[Store, str, str, str], Awaitable[Any]]] = {
    "update_run": lambda store, run, _, member: store.update_run(run, status="failed", error="e", member_id=member),
    "admit": lambda store, run, _, member: store.admit(run, 5, member_id=member),
    "replace_groups": lambda store, run, _, member: store.replace_groups(run, 2, member_id=member),
    "take_groups": lambda store, run, _, member: store.take_groups(run, 1, member_id=member),
    "close_sampling": lambda store, run, _, member: store.close_sampling(run, member_id=member),
    "add_evaluation": lambda store, run, _, member: store.add_evaluation(
        run, "eval", ["t"], version=0, member_id=member
    ),
    "add_version": lambda store, run, _, member: store.add_version(run, 7, step=1, member_id=member),
    "add_step": lambda store, run, group, member: store.add_step(step(run, 1, groups=[group]), member_id=member),
    "add_seal": lambda store, run, _, member: store.add_seal(
        SealRow(run_id=run, number=0, body="{}", digest="d"), records={f"{run}-scored": 0}, member_id=member
    ),
    "void_after": lambda store, run, _, member: store.void_after(run, 0, member_id=member),
}
"""Name -> this write of a trainer in a run with a group that is ready."""


class StoreFencingSuite(ConformanceSuite):
    """Writes of trainers that may have a successor."""

    @pytest.mark.parametrize("end", ["lost", "left"])
    @pytest.mark.parametrize("write", WRITES)
    def test_a_former_trainer_changes_nothing(self, store: Store, write: str, end: str) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            former = await join(store, run, role="train")
            group = await _ready(store, run, member)
            await (store.declare_lost(former, beats=0) if end == "lost" else store.leave(former))
            alone = await _everything(store, run)
            with pytest.raises(MemberError, match="declared lost"):
                await WRITES[write](store, run, group.group_id, former)
            assert await _everything(store, run) == alone
            successor = await join(store, run, role="train")
            before = await _everything(store, run)
            for stranger in (former, "unknown", await join(store, await _other_run(store), role="train")):
                with pytest.raises(MemberError, match="declared lost"):
                    await WRITES[write](store, run, group.group_id, stranger)
            assert await _everything(store, run) == before
            await WRITES[write](store, run, group.group_id, successor)

        asyncio.run(scenario())

    def test_a_trainer_that_waits_for_groups_gets_none_after_its_successor_came(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            former = await join(store, run, role="train")
            waiting = asyncio.create_task(store.take_groups(run, 1, member_id=former))
            await asyncio.sleep(0)
            await store.declare_lost(former, beats=0)
            successor = await join(store, run, role="train")
            group = await _ready(store, run, member)
            with pytest.raises(MemberError, match="declared lost"):
                await asyncio.wait_for(waiting, 60)
            taken = await asyncio.wait_for(store.take_groups(run, 1, member_id=successor), 60)
            assert [found.id for found in taken] == [group.group_id]

        asyncio.run(scenario())

    def test_each_trainer_in_turn_may_write(self, store: Store) -> None:
        async def scenario() -> None:
            run, *_ = await sampling_run(store)
            for number in range(3):
                trainer = await join(store, run, role="train")
                await store.void_after(run, number, member_id=trainer)
                await store.add_version(run, 2 * number, step=number, member_id=trainer)
                await store.admit(run, number, member_id=trainer)
                await store.add_step(step(run, number + 1), member_id=trainer)
                await store.update_run(run, status=f"after {number}", member_id=trainer)
                await store.leave(trainer)
            assert [row.step for row in await store.steps(run) if not row.voided] == [1, 2, 3]
            assert {row.status for row in await store.runs() if row.id == run} == {"after 2"}

        asyncio.run(scenario())


async def _other_run(store: Store) -> str:
    run, *_ = await sampling_run(store, num_members=0)
    return run


async def _ready(store: Store, run: str, member: str) -> GroupClaim:
    """Sample a group with one record, whose id is known, to its end."""
    (group,) = await claim(store, run, member)
    record = await add_record(store, run, group.group_id, member_id=member, record_id=f"{run}-scored")
    await store.finish_record(attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0))
    await store.finish_group(group, usable=True)
    return group


async def _everything(store: Store, run: str) -> tuple[Any, ...]:
    """Return all that a trainer may change."""
    return (
        [row for row in await store.runs() if row.id == run],
        await store.control(run),
        await store.groups(run),
        await store.steps(run),
        await store.versions(run),
        await store.last_version(run),
        await store.seals(run),
        [row.record.id for row in await store.unsealed(run, limit=9)],
    )
