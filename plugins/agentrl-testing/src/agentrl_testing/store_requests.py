"""Conformance tests of stores, last part: requests of people to cancel a record and to sample a position again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import attrs
import pytest

from agentrl_core.api.stores import RunControl
from agentrl_core.errors import StoreError
from agentrl_testing.base import ConformanceSuite
from agentrl_testing.store_values import UNLIMITED, claim, create_run, join, sampling_run

if TYPE_CHECKING:
    from agentrl_core.api.stores import Store
    from agentrl_testing.store_facts import Reopen


class StoreRequestsSuite(ConformanceSuite):
    """Cancellations in the control of a run, and requeued groups."""

    def test_records_to_cancel_are_added_and_removed_one_by_one(self, store: Store, reopen: Reopen) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            await store.set_control(run, cancel={"b": True, "a": True})
            assert await store.set_control(run, wanted="pause") == RunControl(wanted="pause", cancel=("b", "a"))
            other = reopen()
            changed = await other.set_control(run, cancel={"b": False, "a": True, "c": True, "unknown": False})
            assert changed.cancel == ("a", "c")
            await other.close()
            assert await store.control(run) == RunControl(wanted="pause", cancel=("a", "c"))

        asyncio.run(scenario())

    @pytest.mark.parametrize("ending", ["dropped", "dead"])
    def test_a_requeued_position_comes_once_more_whatever_its_tries(self, store: Store, ending: str) -> None:
        strict = attrs.evolve(UNLIMITED, requeue=0, max_takeovers=0)

        async def scenario() -> None:
            run, member = await sampling_run(store)
            (group,) = await claim(store, run, member, admission=strict)
            if ending == "dropped":
                assert not await store.finish_group(group, usable=False)
            else:
                assert await store.declare_lost(member, beats=0)
                member = await join(store, run)
                (ahead,) = await claim(store, run, member, admission=strict)
                assert ahead.index == 1
            assert await store.requeue_group(run, group.group_id)
            assert not await store.requeue_group(run, group.group_id)  # it waits
            (again,) = await claim(store, run, member, admission=strict)
            assert (again.index, again.task_id, again.tries) == (0, "task-0", group.tries + 1)
            assert not await store.requeue_group(run, group.group_id)  # it has a later group
            assert not await store.requeue_group(run, again.group_id)  # it is open
            assert not await store.finish_group(again, usable=False)
            assert await store.requeue_group(run, again.group_id)

        asyncio.run(scenario())

    def test_a_position_that_waits_for_its_next_try_comes_at_once(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            (group,) = await claim(store, run, member)
            assert await store.finish_group(group, usable=False, requeue=1)
            assert [item.index for item in await claim(store, run, member)] == [1]
            assert await store.requeue_group(run, group.group_id)
            (again,) = await claim(store, run, member)
            assert (again.index, again.tries) == (0, 1)
            await store.admit(run, 0)
            assert [item.index for item in await claim(store, run, member)] == [2]  # it came once, not twice

        asyncio.run(scenario())

    def test_a_requeued_position_survives_that_its_group_is_set_aside(self, store: Store) -> None:
        strict = attrs.evolve(UNLIMITED, requeue=0)

        async def scenario() -> None:
            run, member = await sampling_run(store)
            await store.add_version(run, 0, step=0)
            (group,) = await claim(store, run, member, admission=strict)
            await store.finish_group(group, usable=False)
            assert await store.requeue_group(run, group.group_id)
            await store.add_version(run, 1, step=1)
            (again,) = await claim(store, run, member, admission=strict, version=1)
            assert (again.index, again.tries) == (0, 1)
            await store.void_after(run, 0)  # and with it version 1
            await store.admit(run, 0)
            found = await claim(store, run, member, 2, admission=strict, version=2)
            assert [(item.index, item.tries) for item in found] == [(0, 1), (1, 0)]

        asyncio.run(scenario())

    def test_only_training_groups_of_the_run_are_requeued(self, store: Store) -> None:
        async def scenario() -> None:
            run, member = await sampling_run(store)
            await store.add_evaluation(run, "eval", ["t"], version=0)
            (evaluation,) = await claim(store, run, member)
            await store.finish_group(evaluation, usable=False)
            assert not await store.requeue_group(run, evaluation.group_id)
            assert [item.index for item in await claim(store, run, member)] == [0]
            other = await create_run(store)
            with pytest.raises(StoreError, match=evaluation.group_id):
                await store.requeue_group(other, evaluation.group_id)

        asyncio.run(scenario())
