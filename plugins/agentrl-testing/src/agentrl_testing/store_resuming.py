"""Conformance tests of stores, fifth part: a run that goes on from an earlier step loses no work and repeats none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import attrs
import pytest

from agentrl_core.api.claims import Admission
from agentrl_core.api.stores import ResumePoint
from agentrl_core.errors import ClaimLostError, MemberError, StoreError
from agentrl_core.types import Outcome
from agentrl_testing.base import ConformanceSuite
from agentrl_testing.store_values import (
    add_group,
    add_record,
    call,
    claim,
    create_run,
    join,
    sampling_run,
    score,
    session,
    states,
    step,
)

if TYPE_CHECKING:
    from agentrl_core.api.claims import GroupClaim
    from agentrl_core.api.stores import Store


class StoreResumingSuite(ConformanceSuite):
    """`void_after` and `resume_point`."""

    def test_resuming_voids_later_steps_and_deletes_no_record(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            await store.add_version(run, 0, step=0)
            groups = []
            for number in range(1, 4):
                group = await _ready(store, run, member, version=number - 1)
                await _train(store, run, number, group)
                groups.append(group)
            await store.close_sampling(run)
            await store.leave(member)
            assert await store.void_after(run, 1) == 2
            point = await store.resume_point(run, 1)
            # The group of step 2 was sampled by version 1, which stays; that of step 3 by version 2, which is void.
            assert attrs.evolve(point, left={}) == ResumePoint(step=1, next_index=1, last_version=3)
            assert [(row.step, row.voided) for row in await store.steps(run)] == [(1, False), (2, True), (3, True)]
            assert await states(store, run) == {0: "trained", 1: "ready", 2: "aside"}
            assert [record.outcome for record in await store.records(run)] == [Outcome.SCORED] * 3
            assert await store.void_after(run, 1) == 0

            await store.add_version(run, 4, step=1)
            (taken,) = await store.take_groups(run, 1)
            assert (taken.id, len(taken.episodes)) == (groups[1].group_id, 1)
            await store.add_step(step(run, 2, groups=(taken.id,), version=5))
            assert [row.version for row in await store.steps(run) if not row.voided] == [1, 5]
            assert (await store.resume_point(run, 2)).next_index == 2

        asyncio.run(scenario())

    def test_sampling_is_open_again_and_begins_with_the_next_admission(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            await claim(store, run, member)
            await store.replace_groups(run, 5)
            await store.close_sampling(run)
            await store.void_after(run, 0)
            control = await store.control(run)
            assert (control.admitted_steps, control.closed) == (-1, False)
            assert not await claim(store, run, member)
            taking = asyncio.create_task(store.take_groups(run, 1))
            await asyncio.sleep(0)
            assert not taking.done()
            taking.cancel()
            await store.admit(run, 0)
            # The replacements for the step that is not made any more do not count.
            two = Admission(max_head_offpolicyness=0, tasks_per_step=2)
            assert [group.index for group in await claim(store, run, member, 9, admission=two)] == [1]

        asyncio.run(scenario())

    def test_a_finished_group_that_was_not_trained_trains_after_a_restart(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            await store.add_version(run, 0, step=0)
            ready, taken = await _ready(store, run, member), await _ready(store, run, member)
            await store.take_groups(run, 1)  # of which the trainer died
            await store.void_after(run, 0)
            await store.add_version(run, 1, step=0)
            await store.admit(run, 0)
            assert [group.id for group in await store.take_groups(run, 2)] == [ready.group_id, taken.group_id]
            assert [group.index for group in await claim(store, run, member)] == [2]

        asyncio.run(scenario())

    def test_a_live_member_keeps_its_open_groups(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            await store.add_version(run, 0, step=0)
            (group,) = await claim(store, run, member)
            record = await add_record(store, run, group.group_id, member_id=member)
            await store.add_session(session(record))
            await store.void_after(run, 0)
            assert [row.state for row in await store.sessions(run)] == ["open"]
            assert await store.finish_record(attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0))
            await store.finish_group(group, usable=True)
            assert [taken.id for taken in await store.take_groups(run, 1)] == [group.group_id]

        asyncio.run(scenario())

    def test_an_abandoned_group_keeps_its_scored_records(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            await store.add_version(run, 0, step=0)
            (group,) = await claim(store, run, member)
            done = await score(store, run, group)
            running = await add_record(store, run, group.group_id, member_id=member, sample_index=1)
            await store.leave(member)
            await store.void_after(run, 0)
            await store.admit(run, 0)
            other = await join(store, run)
            (again,) = await claim(store, run, other)
            assert (again.group_id, again.scored) == (group.group_id, {0: done.id})
            assert not await store.finish_record(attrs.evolve(running, outcome=Outcome.SCORED, reward=1.0))

        asyncio.run(scenario())

    def test_records_and_sessions_that_no_member_runs_end(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            group = await add_group(store, run)
            running, done = await add_record(store, run, group), await add_record(store, run, group)
            for record in (running, done):
                await store.add_session(session(record))
            await store.finish_record(attrs.evolve(done, outcome=Outcome.SCORED, reward=1.0))
            await store.void_after(run, 0)
            assert {row.record_id: row.state for row in await store.sessions(run)} == {
                running.id: "closed",
                done.id: "open",
            }
            outcomes = {record.id: record.outcome for record in await store.records(run)}
            assert outcomes == {running.id: Outcome.CANCELLED, done.id: Outcome.SCORED}

        asyncio.run(scenario())

    @pytest.mark.parametrize("state", ["running", "scored", "failed"])
    @pytest.mark.parametrize("group_state", ["open", "trained"])
    def test_no_token_of_a_void_version_is_trained(self, store: Store, state: str, group_state: str) -> None:
        """A partial rollout began with a version that stays, and went on with one that is void now."""

        async def scenario() -> None:
            run, member = await sampling_run(store)
            await store.add_version(run, 0, step=0)
            (group,) = await claim(store, run, member)
            record = await add_record(store, run, group.group_id, member_id=member)
            await store.add_interaction(
                run, call(record, output_ids=(3, 4), logprobs=(-0.5, -0.5), versions=((0, 1), (1, 1)))
            )
            if state != "running":
                outcome = Outcome.SCORED if state == "scored" else Outcome.FAILED
                await store.finish_record(attrs.evolve(record, outcome=outcome, reward=1.0))
            await store.add_version(run, 1, step=1)
            await store.add_step(step(run, 1))
            if group_state == "trained":
                await store.finish_group(group, usable=True)
                await store.take_groups(run, 1)
                await store.add_step(step(run, 2, groups=[group.group_id]))
            await store.void_after(run, 0)
            # A failed record is never handed out.
            kept = state == "failed"
            after = {"open": "open", "trained": "ready"}[group_state] if kept else "aside"
            assert await states(store, run) == {0: after}
            await store.admit(run, 0)
            assert [item.index for item in await claim(store, run, member)] == [1 if kept else 0]
            if not kept and group_state == "open":
                with pytest.raises(ClaimLostError):
                    await store.finish_group(group, usable=True)
                assert (await store.records(run))[0].outcome is not Outcome.RUNNING

        asyncio.run(scenario())

    def test_positions_come_again_with_the_tries_from_before(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            await store.add_version(run, 0, step=0)
            # Position 0 fails with version 0; its second try, and the first of position 1, fail with version 1.
            (first,) = await claim(store, run, member)
            assert await store.finish_group(first, usable=False, requeue=2)
            await store.add_version(run, 1, step=1)
            await store.add_step(step(run, 1))
            await store.admit(run, 1)
            for group in await claim(store, run, member, 2, version=1):
                assert await store.finish_group(group, usable=False, requeue=2)
            await store.admit(run, 1)
            (third,) = await claim(store, run, member, version=1)
            assert (third.index, third.tries) == (0, 2)
            await store.void_after(run, 0)
            await store.admit(run, 0)
            found = await claim(store, run, member, 3)
            assert [(group.index, group.tries) for group in found] == [(0, 1), (1, 0), (2, 0)]
            with pytest.raises(ClaimLostError):
                await store.finish_group(third, usable=True)

        asyncio.run(scenario())

    def test_the_point_to_resume_from_is_behind_the_highest_position_that_was_trained(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            await store.add_version(run, 0, step=0)
            groups = await claim(store, run, member, 3)
            assert await store.finish_group(groups[1], usable=False, requeue=1)
            await store.finish_group(groups[2], usable=True)
            await store.add_step(step(run, 1, groups=[groups[2].group_id]))
            await store.void_after(run, 1)
            assert (await store.resume_point(run, 1)).next_index == 3

        asyncio.run(scenario())

    def test_reserved_groups_and_evaluations_of_void_versions_disappear(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            (kept,) = await claim(store, run, member, task_at=None)
            await store.add_version(run, 1, step=1)
            (void,) = await claim(store, run, member, task_at=None, version=1)
            asked = await store.add_evaluation(run, "eval", ["t"], version=0)
            await store.void_after(run, 0)
            assert [row.state for row in await store.groups(run)] == ["reserved", "aside"]
            assert await store.await_groups(run, asked) == [None]
            assert (await store.begin_group(kept, "t")).index == 0
            with pytest.raises(ClaimLostError):
                await store.begin_group(void, "t")

        asyncio.run(scenario())

    def test_a_former_trainer_adds_no_step_of_groups_that_were_set_aside(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            await store.add_version(run, 1, step=1)
            group = await _ready(store, run, member, version=1)
            await store.take_groups(run, 1)
            await store.void_after(run, 0)
            with pytest.raises(StoreError, match=group.group_id):
                await store.add_step(step(run, 1, groups=[group.group_id]))
            assert await store.steps(run) == []

        asyncio.run(scenario())

    @pytest.mark.parametrize("end", ["lost", "left"])
    def test_a_former_trainer_adds_no_step_of_groups_that_its_successor_has(self, store: Store, end: str) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            former = await join(store, run, role="train")
            group = await _ready(store, run, member)
            (taken,) = await store.take_groups(run, 1)
            late = step(run, 1, groups=[taken.id])
            await (store.declare_lost(former, beats=0) if end == "lost" else store.leave(former))
            successor = await join(store, run, role="train")
            await store.void_after(run, 0)
            for stranger in (former, "unknown"):
                with pytest.raises(MemberError, match="declared lost"):
                    await store.add_step(late, member_id=stranger)
            assert await store.steps(run) == []
            assert [again.id for again in await store.take_groups(run, 1)] == [group.group_id]
            with pytest.raises(MemberError):
                await store.add_step(late, member_id=former)
            await store.add_step(late, member_id=successor)
            assert [row.state for row in await store.groups(run)] == ["trained"]

        asyncio.run(scenario())

    def test_a_run_without_steps_resumes_from_its_start(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            assert await store.void_after(run, 0) == 0
            assert await store.resume_point(run, 0) == ResumePoint(step=0, next_index=0, last_version=-1)

        asyncio.run(scenario())


async def _ready(store: Store, run: str, member: str, *, version: int = 0) -> GroupClaim:
    """Sample a group with one record to its end."""
    (group,) = await claim(store, run, member, version=version)
    record = await add_record(store, run, group.group_id, member_id=member)
    await store.add_interaction(run, call(record, versions=((version, 1),)))
    await store.finish_record(attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0))
    await store.finish_group(group, usable=True)
    return group


async def _train(store: Store, run: str, number: int, group: GroupClaim) -> None:
    """Take a group, make a step of it, and publish the step's version, which has its number."""
    assert [taken.id for taken in await store.take_groups(run, 1)] == [group.group_id]
    await store.add_step(step(run, number, groups=(group.group_id,)))
    await store.add_version(run, number, step=number)
