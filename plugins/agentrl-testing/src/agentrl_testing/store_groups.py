"""Conformance tests of stores, fourth part: the learner takes each group once and in order, and steps consume them."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import attrs
import pytest

from agentrl_core.api.group_queue import OvertakeLimits
from agentrl_core.errors import StoreError
from agentrl_core.types import Group, Outcome
from agentrl_testing.base import ConformanceSuite
from agentrl_testing.store_values import add_record, call, claim, create_run, sampling_run, states, step

if TYPE_CHECKING:
    from agentrl_core.api.claims import GroupClaim
    from agentrl_core.api.group_queue import Waiting
    from agentrl_core.api.stores import Store


class StoreGroupsSuite(ConformanceSuite):
    """Consumption of groups, steps and versions."""

    def test_groups_are_taken_in_the_order_of_their_submission(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            groups = [(await claim(store, run, member, version=version))[0] for version in range(4)]
            for group in (groups[3], groups[1], groups[0], groups[2]):
                await store.finish_group(group, usable=True)
            first, second = await store.take_groups(run, 2), await store.take_groups(run, 2)
            assert [group.id for group in first + second] == [group.group_id for group in groups]
            found = [(group.index, group.version, group.task_id) for group in second]
            assert found == [(2, 2, "task-2"), (3, 3, "task-3")]

        asyncio.run(scenario())

    def test_a_position_that_came_again_waits_behind_the_groups_of_earlier_steps(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            for version in range(2):
                await store.add_version(run, version, step=version)
            dropped, second = await claim(store, run, member, 2)
            assert await store.finish_group(dropped, usable=False, requeue=1)
            await store.admit(run, 0)
            (again,) = await claim(store, run, member, version=1)
            for group in (again, second):
                await store.finish_group(group, usable=True)
            assert [group.index for group in await store.take_groups(run, 2)] == [1, 0]

        asyncio.run(scenario())

    def test_groups_of_one_step_are_taken_by_index_whatever_their_versions(self, store: Store) -> None:
        """A resumed run publishes the weights of its step again, as a new version."""

        async def scenario() -> None:
            run, member = await sampling_run(store)
            groups: dict[int, list[GroupClaim]] = {}
            for version, step_of_version in ((0, 0), (3, 0), (4, 1)):
                await store.add_version(run, version, step=step_of_version)
                groups[version] = await claim(store, run, member, 2, version=version)
            for group in (*groups[4], groups[0][1], *groups[3]):
                await store.finish_group(group, usable=True)
            # The position of this one comes again with the later version, before those that had it all the time.
            assert await store.finish_group(groups[0][0], usable=False, requeue=1)
            await store.admit(run, 0)
            (again,) = await claim(store, run, member, version=3)
            await store.finish_group(again, usable=True)
            assert [group.index for group in await store.take_groups(run, 6)] == [0, 1, 2, 3, 4, 5]

        asyncio.run(scenario())

    def test_a_group_holds_scored_records_of_each_slot_in_order(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            (claimed,) = await claim(store, run, member)
            outcomes = [
                (2, 0, Outcome.SCORED),
                (0, 0, Outcome.FAILED),
                (1, 0, Outcome.REJECTED),
                (0, 1, Outcome.SCORED),
            ]
            # Slot 0 was retried, slot 1 has no scored record, and slot 3 (below) is still running.
            for sample_index, attempt, outcome in outcomes:
                record = await add_record(store, run, claimed.group_id, sample_index=sample_index, attempt=attempt)
                await store.add_interaction(run, call(record))
                await store.finish_record(attrs.evolve(record, outcome=outcome, reward=float(attempt)))
            await add_record(store, run, claimed.group_id, sample_index=3)
            await store.finish_group(claimed, usable=True)
            (group,) = await store.take_groups(run, 1)
            found = [(episode.record.sample_index, episode.record.attempt) for episode in group.episodes]
            assert found == [(0, 1), (2, 0)]
            assert all(len(episode.interactions) == 1 for episode in group.episodes)

        asyncio.run(scenario())

    def test_an_open_group_holds_back_later_ones_and_a_dropped_one_does_not(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            groups = await claim(store, run, member, 3)
            await store.finish_group(groups[1], usable=True)
            await store.finish_group(groups[2], usable=True)
            taking = asyncio.create_task(store.take_groups(run, 2))
            # Let the task reach its wait.
            for _ in range(3):
                await asyncio.sleep(0)
            assert not taking.done()
            await store.finish_group(groups[0], usable=False)
            assert [group.index for group in await taking] == [1, 2]

        asyncio.run(scenario())

    def test_ready_groups_overtake_open_ones_until_those_would_get_too_old(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            groups = await claim(store, run, member, 3)
            (fresh,) = await claim(store, run, member, version=1)
            for group in (groups[1], fresh):
                await store.finish_group(group, usable=True)
            (first,) = await store.take_groups(run, 1, ahead=OvertakeLimits(step=0, max_lag=2, per_step=1))
            assert first.index == 1
            # Two groups of step 0 are left. Only this step and the next may still take them, one each.
            taking = asyncio.create_task(store.take_groups(run, 1, ahead=OvertakeLimits(step=1, max_lag=2, per_step=1)))
            await asyncio.sleep(0)
            assert not taking.done()
            await store.finish_group(groups[2], usable=True)
            assert [group.index for group in await taking] == [2]

        asyncio.run(scenario())

    def test_an_order_ranks_the_ready_groups_by_their_facts(self, store: Store) -> None:
        """Whatever is left behind waits; but what is too old comes first, so that it can be dropped."""

        async def scenario() -> None:
            run, member = await sampling_run(store)
            first, second, dropped, _ = await claim(store, run, member, 4)
            await store.finish_group(dropped, usable=False, requeue=1)
            await store.admit(run, 0)
            again, fresh = await claim(store, run, member, 2, version=1)
            for group in (first, second, again, fresh):
                await store.finish_group(group, usable=True)
            asked = []

            def urgency(group: Waiting) -> float:
                asked.append((group.index, group.task_id, group.step, group.tries))
                return group.tries + group.index / 10

            async def take(done: int, count: int) -> list[int]:
                limits = OvertakeLimits(step=done, max_lag=1, per_step=count, urgency=urgency)
                return [group.index for group in await store.take_groups(run, count, ahead=limits)]

            assert await take(1, 1) == [2]
            facts = [(0, "task-0", 0, 0), (1, "task-1", 0, 0), (2, "task-2", 1, 1), (4, "task-4", 1, 0)]
            assert asked == facts
            asked.clear()
            assert await take(2, 3) == [0, 1, 4]
            assert asked == facts[3:]
            # The open group is too old, too, but only what is ready can be taken.
            taking = asyncio.create_task(take(2, 1))
            await asyncio.sleep(0)
            assert not taking.done()
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking

        asyncio.run(scenario())

    @pytest.mark.parametrize("versions", [(1, 2), (5, 9)])
    def test_the_age_of_a_group_counts_steps(self, store: Store, versions: tuple[int, int]) -> None:
        """The versions of a resumed run jump, which makes its groups no younger."""

        async def scenario() -> None:
            run, member = await sampling_run(store)
            await store.add_version(run, 0, step=0)
            claims = []
            for number, version in enumerate(versions, start=1):
                await store.add_version(run, version, step=number)
                claims += await claim(store, run, member, version=version)
            await store.finish_group(claims[1], usable=True)
            # The open group is of step 1, so this step is the last that may take it.
            taking = asyncio.create_task(store.take_groups(run, 1, ahead=OvertakeLimits(step=2, max_lag=1, per_step=1)))
            await asyncio.sleep(0)
            assert not taking.done()
            await store.finish_group(claims[0], usable=True)
            assert [group.index for group in await taking] == [0]

        asyncio.run(scenario())

    def test_taking_waits_for_a_finish_on_another_thread(self, store: Store) -> None:
        run, member = asyncio.run(sampling_run(store))
        (claimed,) = asyncio.run(claim(store, run, member))

        async def scenario() -> list[Group]:
            taking = asyncio.create_task(store.take_groups(run, 1))
            await asyncio.sleep(0)
            thread = threading.Thread(target=lambda: asyncio.run(store.finish_group(claimed, usable=True)))
            thread.start()
            taken = await taking
            thread.join()
            return taken

        assert [group.id for group in asyncio.run(scenario())] == [claimed.group_id]

    def test_each_group_is_handed_out_once(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            takers = [asyncio.create_task(store.take_groups(run, 2)) for _ in range(3)]
            for _ in range(6):
                (group,) = await claim(store, run, member)
                await store.finish_group(group, usable=True)
            taken = [group.index for groups in await asyncio.gather(*takers) for group in groups]
            assert sorted(taken) == list(range(6))

        asyncio.run(scenario())

    def test_groups_of_evaluations_and_other_runs_are_never_taken(self, store: Store) -> None:
        async def scenario() -> None:
            (run, member), (other, its) = await sampling_run(store), await sampling_run(store)
            await store.add_evaluation(run, "eval", ["t"], version=0)
            for claims in (await claim(store, run, member), await claim(store, other, its)):
                await store.finish_group(claims[0], usable=True)
            await store.close_sampling(run)
            assert await store.take_groups(run, 5) == []

        asyncio.run(scenario())

    def test_closing_wakes_a_taker_with_what_is_ready(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            _, ready = await claim(store, run, member, 2)
            await store.finish_group(ready, usable=True)
            taking = asyncio.create_task(store.take_groups(run, 3))
            await asyncio.sleep(0)
            await store.close_sampling(run)
            assert [group.id for group in await taking] == [ready.group_id]
            assert await store.take_groups(run, 1) == []

        asyncio.run(scenario())

    def test_a_cancelled_taker_takes_nothing(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            taking = asyncio.create_task(store.take_groups(run, 1))
            await asyncio.sleep(0)
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking
            (claimed,) = await claim(store, run, member)
            await store.finish_group(claimed, usable=True)
            assert [group.id for group in await store.take_groups(run, 1)] == [claimed.group_id]

        asyncio.run(scenario())

    def test_steps_come_back_with_what_they_consumed(self, store: Store) -> None:
        first = step("", 1, groups=("g-1", "g-2"), records=("r-1",), metrics={"reward/mean": 0.1, "loss/value": -1e-9})

        async def scenario() -> None:
            run = await create_run(store)
            steps = [attrs.evolve(first, run_id=run), attrs.evolve(first, run_id=run, step=2, version=2)]
            for row in steps:
                await store.add_step(row)
            assert await store.steps(run) == steps
            with pytest.raises(StoreError):
                await store.add_step(steps[0])

        asyncio.run(scenario())

    def test_a_step_trains_its_groups_and_no_group_is_trained_twice(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            claims = await claim(store, run, member, 3)
            for claimed in claims:
                await store.finish_group(claimed, usable=True)
            taken = await store.take_groups(run, 2)
            await store.add_step(step(run, 1, groups=[group.id for group in taken]))
            assert await states(store, run) == {0: "trained", 1: "trained", 2: "ready"}
            with pytest.raises(StoreError, match=claims[1].group_id):
                await store.add_step(step(run, 2, groups=[claims[2].group_id, claims[1].group_id]))
            assert [row.step for row in await store.steps(run)] == [1]
            assert await states(store, run) == {0: "trained", 1: "trained", 2: "ready"}

        asyncio.run(scenario())

    def test_versions_never_fall(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            assert await store.last_version(run) == -1
            await store.add_version(run, 0, step=0)
            await store.add_version(run, 7, step=1)
            for version in (7, 6):
                with pytest.raises(StoreError):
                    await store.add_version(run, version, step=2)
            assert await store.last_version(run) == 7

        asyncio.run(scenario())

    def test_a_closed_store_says_so(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            await store.close()
            await store.close()
            with pytest.raises(StoreError, match="closed"):
                await store.records(run)
            with pytest.raises(StoreError, match="closed"):
                await store.changed(run, 0, timeout_s=600)

        asyncio.run(scenario())
