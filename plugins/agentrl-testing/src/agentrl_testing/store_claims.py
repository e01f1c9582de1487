"""Conformance tests of stores, third part: which groups a member gets, how many of them, and how they end."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import attrs
import pytest

from agentrl_core.api.claims import Admission, GroupClaim
from agentrl_core.errors import ClaimLostError, StoreError
from agentrl_core.types import Outcome
from agentrl_testing.base import ConformanceSuite
from agentrl_testing.store_values import (
    UNLIMITED,
    add_record,
    claim,
    create_run,
    join,
    sampling_run,
    score,
    states,
    step,
)

if TYPE_CHECKING:
    from agentrl_core.api.stores import Store


class StoreClaimsSuite(ConformanceSuite):
    """Claims, admission and evaluations."""

    def test_new_groups_follow_the_order_of_positions(self, store: Store) -> None:
        async def scenario() -> None:
            run, member, other = await sampling_run(store, num_members=2)
            first = await claim(store, run, member, 2, size=3, version=7)
            (second,) = await claim(store, run, other)
            assert [(group.index, group.task_id) for group in (*first, second)] == [
                (0, "task-0"),
                (1, "task-1"),
                (2, "task-2"),
            ]
            expected = {"size": 3, "version": 7, "tries": 0, "takeovers": 0, "is_eval": False, "task_set": "train"}
            assert {name: getattr(first[1], name) for name in expected} == expected
            rows = await store.groups(run)
            assert [(row.id, row.member_id, row.state) for row in rows] == [
                (first[0].group_id, member, "open"),
                (first[1].group_id, member, "open"),
                (second.group_id, other, "open"),
            ]
            assert (rows[1].task_id, rows[1].index, rows[1].size, rows[1].version) == ("task-1", 1, 3, 7)
            assert not await claim(store, run, member, 0)

        asyncio.run(scenario())

    def test_evaluations_come_first_then_abandoned_groups_then_positions_put_back(self, store: Store) -> None:
        async def scenario() -> None:
            run, member, lost = await sampling_run(store, num_members=2)
            dropped = await claim(store, run, member, 2)
            for group in reversed(dropped):
                assert await store.finish_group(group, usable=False, requeue=1)
            abandoned = await claim(store, run, lost, 2)
            for group in reversed(abandoned):
                await store.release_group(group)
            asked = await store.add_evaluation(run, "eval.hard", ["b", "a"], version=4)
            await store.admit(run, 0)
            found = await claim(store, run, member, 7)
            assert [group.group_id for group in found[:4]] == [*asked, *(group.group_id for group in abandoned)]
            assert [(group.index, group.tries) for group in found[4:]] == [(0, 1), (1, 1), (4, 0)]
            evaluation = found[1]
            assert attrs.evolve(evaluation, group_id="") == GroupClaim(
                group_id="", member_id=member, index=1, task_id="a", size=1, version=4, is_eval=True,
                task_set="eval.hard",
            )  # fmt: skip

        asyncio.run(scenario())

    def test_only_evaluations_are_claimed_before_sampling_begins_and_after_it_is_closed(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            member = await join(store, run)
            for begin_and_close in (False, True):
                if begin_and_close:
                    await store.admit(run, 0)
                    (group,) = await claim(store, run, member)
                    await store.release_group(group)
                    await store.close_sampling(run)
                asked = await store.add_evaluation(run, "eval", ["t"], version=0)
                assert [group.group_id for group in await claim(store, run, member, 5)] == list(asked)

        asyncio.run(scenario())

    def test_admission_counts_every_group_that_is_not_trained(self, store: Store) -> None:
        admission = Admission(max_head_offpolicyness=1, tasks_per_step=2, total_steps=3, requeue=1)

        async def scenario() -> None:
            run, member = await sampling_run(store)

            async def admitted(count: int = 9) -> list[GroupClaim]:
                return await claim(store, run, member, count, admission=admission)

            first, second = await admitted(3), await admitted()
            assert (len(first), len(second)) == (3, 1)
            # Ready and taken groups count, a dropped one does not.
            for group in first[:2]:
                await store.finish_group(group, usable=True)
            assert len(await store.take_groups(run, 2)) == 2
            assert not await admitted()
            assert await store.finish_group(first[2], usable=False, requeue=1)
            (third,) = await admitted()
            assert third.index == 4
            # Evaluations neither count nor wait.
            await store.add_evaluation(run, "eval", ["t"], version=0)
            assert [group.is_eval for group in await admitted()] == [True]
            # Training alone opens no capacity; the trainer does, and the position put back comes before new ones.
            await store.add_step(step(run, 1, groups=[group.group_id for group in first[:2]]))
            await store.admit(run, 1)
            fourth = await admitted()
            assert [group.index for group in fourth] == [2, 5]
            for group in (*second, third, *fourth):
                await store.finish_group(group, usable=True)
            await store.add_step(step(run, 2, groups=[group.id for group in await store.take_groups(run, 2)]))
            await store.admit(run, 2)
            # A fourth step would not be made.
            assert not await admitted()

        asyncio.run(scenario())

    def test_filtered_groups_are_replaced_until_the_next_step(self, store: Store) -> None:
        admission = Admission(max_head_offpolicyness=0, tasks_per_step=2)

        async def scenario() -> None:
            run, member = await sampling_run(store)
            groups = await claim(store, run, member, 9, admission=admission)
            for group in groups:
                await store.finish_group(group, usable=True)
            await store.take_groups(run, 2)
            await store.replace_groups(run, 1)
            (more,) = await claim(store, run, member, 9, admission=admission)
            await store.finish_group(more, usable=True)
            await store.take_groups(run, 1)
            await store.add_step(step(run, 1, groups=[group.group_id for group in (*groups, more)]))
            await store.admit(run, 1)
            assert len(await claim(store, run, member, 9, admission=admission)) == 2

        asyncio.run(scenario())

    def test_a_position_comes_again_as_often_as_it_may(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            for tries in range(3):
                (group,) = await claim(store, run, member)
                assert (group.index, group.tries) == (0, tries)
                assert await store.finish_group(group, usable=False, requeue=2) == (tries < 2)
                await store.admit(run, 0)
            (group,) = await claim(store, run, member)
            assert (group.index, group.tries) == (1, 0)
            assert not await store.finish_group(group, usable=True, requeue=2)
            assert await states(store, run) == {0: "dropped", 1: "ready"}

        asyncio.run(scenario())

    def test_a_dropped_position_waits_for_the_next_admission(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            groups = await claim(store, run, member, 2)
            for group in groups:
                assert await store.finish_group(group, usable=False, requeue=1)
            assert [group.index for group in await claim(store, run, member, 2)] == [2, 3]
            await store.admit(run, 1)
            # Whoever allows fewer tries does not get it.
            fewer = attrs.evolve(UNLIMITED, requeue=0)
            assert [group.index for group in await claim(store, run, member, admission=fewer)] == [4]
            assert [group.index for group in await claim(store, run, member, 3)] == [0, 1, 5]

        asyncio.run(scenario())

    def test_a_reserved_group_gets_its_position_when_its_task_comes(self, store: Store) -> None:
        admission = Admission(max_head_offpolicyness=0, tasks_per_step=3)

        async def scenario() -> None:
            run, member = await sampling_run(store)
            first, second, third = await claim(store, run, member, 9, admission=admission, task_at=None)
            assert (first.index, first.task_id) == (-1, "")
            assert await store.begin_group(second, "b") == attrs.evolve(second, index=0, task_id="b")
            begun = await store.begin_group(first, "a")
            assert (begun.index, begun.task_id) == (1, "a")
            with pytest.raises(ClaimLostError):
                await store.begin_group(first, "a")
            with pytest.raises(ClaimLostError):
                await store.finish_group(third, usable=True)
            found = [(row.task_id, row.index, row.state) for row in await store.groups(run)]
            assert sorted(found) == [("", -1, "reserved"), ("a", 1, "open"), ("b", 0, "open")]
            assert not await claim(store, run, member, admission=admission, task_at=None)
            await store.release_group(third)
            (fourth,) = await claim(store, run, member, admission=admission, task_at=None)
            assert fourth.group_id != third.group_id
            assert len(await store.groups(run)) == 3

        asyncio.run(scenario())

    def test_a_released_group_goes_to_the_next_member_and_is_no_takeover(self, store: Store) -> None:
        async def scenario() -> None:
            run, member, other = await sampling_run(store, num_members=2)
            (group,) = await claim(store, run, member)
            done = await score(store, run, group, 2)
            await store.release_group(group)
            (again,) = await claim(store, run, other)
            assert again == attrs.evolve(group, member_id=other, scored={2: done.id})
            # The first member's claim is over.
            await store.release_group(group)
            with pytest.raises(ClaimLostError):
                await store.finish_group(group, usable=True)
            assert [row.member_id for row in await store.groups(run)] == [other]

        asyncio.run(scenario())

    def test_a_group_ends_once(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            (group,) = await claim(store, run, member)
            assert not await store.finish_group(group, usable=True)
            for usable in (True, False):
                with pytest.raises(ClaimLostError, match=group.group_id):
                    await store.finish_group(group, usable=usable, requeue=1)
            with pytest.raises(ClaimLostError):
                await add_record(store, run, group.group_id, member_id=member)
            (row,) = await store.groups(run)
            assert (row.state, row.member_id) == ("ready", "")

        asyncio.run(scenario())

    def test_records_of_a_claimed_group_are_its_member_s_alone(self, store: Store) -> None:
        async def scenario() -> None:
            run, member, other = await sampling_run(store, num_members=2)
            (group,) = await claim(store, run, member)
            for stranger in (other, "unknown"):
                with pytest.raises(ClaimLostError, match=stranger):
                    await add_record(store, run, group.group_id, member_id=stranger)
                with pytest.raises(ClaimLostError, match=stranger):
                    await store.finish_group(attrs.evolve(group, member_id=stranger), usable=True)
            with pytest.raises(ClaimLostError):
                await claim(store, await create_run(store), member)
            assert await store.records(run) == []

        asyncio.run(scenario())

    def test_a_group_that_ends_one_member_after_another_is_dead(self, store: Store) -> None:
        admission = attrs.evolve(UNLIMITED, max_takeovers=1)

        async def scenario() -> None:
            run, last = await sampling_run(store)
            asked = await store.add_evaluation(run, "eval", ["t"], version=0)
            for takeovers in range(2):
                member = await join(store, run)
                evaluation, group = await claim(store, run, member, 2, admission=admission)
                assert (evaluation.takeovers, group.takeovers) == (takeovers, takeovers)
                assert await store.declare_lost(member, beats=0)
            ready = await claim(store, run, last, admission=admission)
            assert [item.index for item in ready] == [1]
            assert [row.state for row in await store.groups(run)] == ["dead", "dead", "open"]
            assert await store.await_groups(run, asked) == [None]
            await store.finish_group(ready[0], usable=True)
            assert [taken.index for taken in await store.take_groups(run, 1)] == [1]
            await store.admit(run, 0)
            assert [item.index for item in await claim(store, run, last)] == [2]

        asyncio.run(scenario())

    def test_an_evaluation_is_over_when_none_of_its_groups_is_open(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            asked = await store.add_evaluation(run, "eval", ["a", "b", "c"], version=0)
            waiting = asyncio.create_task(store.await_groups(run, asked))
            first, second, third = await claim(store, run, member, 3)
            failed = await add_record(store, run, first.group_id, member_id=member)
            failed = attrs.evolve(failed, outcome=Outcome.FAILED)
            assert await store.finish_record(failed)
            again = await score(store, run, first, attempt=1)
            assert not await store.finish_group(first, usable=True)
            assert not await store.finish_group(second, usable=False, requeue=3)
            await asyncio.sleep(0)
            assert not waiting.done()
            done = await score(store, run, third)
            await store.finish_group(third, usable=True)
            assert await asyncio.wait_for(waiting, 60) == [again, None, done]
            assert await store.await_groups(run, [asked[2], asked[0]]) == [done, again]
            assert await store.await_groups(run, []) == []
            # Its positions are those of its own tasks, and do not come again.
            await store.admit(run, 0)
            assert [group.index for group in await claim(store, run, member)] == [0]

        asyncio.run(scenario())

    def test_closing_ends_the_wait_for_an_evaluation(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            asked = await store.add_evaluation(run, "eval", ["a", "b"], version=0)
            (first,) = await claim(store, run, member)
            done = await score(store, run, first)
            await store.finish_group(first, usable=True)
            waiting = asyncio.create_task(store.await_groups(run, asked))
            await asyncio.sleep(0)
            assert not waiting.done()
            await store.close_sampling(run)
            assert await asyncio.wait_for(waiting, 60) == [done, None]
            with pytest.raises(StoreError, match="nowhere"):
                await store.await_groups("nowhere", asked)

        asyncio.run(scenario())

    def test_what_is_not_claimable_is_never_claimed(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            (name,) = await store.add_evaluation(run, "sessions", ["t"], version=3, claimable=False)
            assert [group.index for group in await claim(store, run, member)] == [0]
            record = await add_record(store, run, name)
            assert await store.finish_record(attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0))
            row = (await store.groups(run))[0]
            assert (row.id, row.state, row.task_set, row.version, row.is_eval) == (name, "aside", "sessions", 3, True)

        asyncio.run(scenario())

    def test_members_on_several_threads_never_share_a_group(self, store: Store) -> None:
        run, *members = asyncio.run(sampling_run(store, num_members=4))
        asked = asyncio.run(store.add_evaluation(run, "eval", [f"t{number}" for number in range(6)], version=0))
        admission = Admission(max_head_offpolicyness=0, tasks_per_step=20)
        found: list[GroupClaim] = []
        together = threading.Barrier(len(members))

        async def claim_all(member: str) -> None:
            while groups := await claim(store, run, member, 2, admission=admission):
                found.extend(groups)

        def on_a_loop_of_its_own(member: str) -> None:
            together.wait(60)
            asyncio.run(claim_all(member))

        threads = [threading.Thread(target=on_a_loop_of_its_own, args=(member,)) for member in members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(group.index for group in found if not group.is_eval) == list(range(20))
        assert sorted(group.group_id for group in found if group.is_eval) == sorted(asked)
        rows = {row.id: row.member_id for row in asyncio.run(store.groups(run))}
        assert rows == {group.group_id: group.member_id for group in found}
