"""Conformance tests of stores, second part: members of a run, their end, and what they are told to do."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from agentrl_core.api.members import Member
from agentrl_core.api.stores import RunControl, Store
from agentrl_core.errors import ClaimLostError, MemberError, StoreError
from agentrl_core.types import Outcome
from agentrl_testing.base import ConformanceSuite
from agentrl_testing.store_values import add_record, claim, create_run, join, sampling_run, score, session, step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agentrl_testing.store_facts import Read, Reopen


class StoreMembersSuite(ConformanceSuite):
    """Membership and control."""

    def test_members_come_back_in_order_with_every_field(self, store: Store, read: Read) -> None:
        async def scenario() -> None:
            run, other = await create_run(store), await create_run(store)
            first = Member(
                run_id=run, role="serve", host="è", pid=7, process="boot è 7", joined_at=2.5, lease_s=3.5,
                config_digest="digest", packages={"agentrl-core": "0.1"}, url="http://127.0.0.1:1/v1",
                report={"version": 3, "waits": None},
            )  # fmt: skip
            second = Member(run_id=run, role="sample", joined_at=1.0)
            for member in (first, second, Member(run_id=other, role="sample")):
                await store.join(member)
            assert await store.beat(second.id, {"counts": [1, 2]})
            await store.leave(first.id)
            expected = [
                attrs.evolve(first, state="left"),
                attrs.evolve(second, beats=1, report={"counts": [1, 2]}),
            ]
            assert await store.members(run) == expected
            reader = read()
            assert await reader.members(run) == expected
            assert await store.members(run, live=True) == await reader.members(run, live=True) == expected[1:]
            await reader.close()

        asyncio.run(scenario())

    def test_a_member_of_an_unknown_run_is_refused(self, store: Store) -> None:
        with pytest.raises(StoreError, match="nowhere"):
            asyncio.run(store.join(Member(run_id="nowhere", role="sample")))

    def test_only_live_members_beat(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            left, lost = await join(store, run), await join(store, run)
            await store.leave(left)
            assert await store.declare_lost(lost, beats=0)
            before = await store.members(run)
            for member in (left, lost, "unknown"):
                assert not await store.beat(member, {"late": True})
            assert await store.members(run) == before

        asyncio.run(scenario())

    def test_a_run_has_one_live_trainer(self, store: Store) -> None:
        async def scenario() -> None:
            run, other = await create_run(store), await create_run(store)
            first = Member(run_id=run, role="train", host="node7", pid=4711)
            await store.join(first)
            with pytest.raises(MemberError, match=r"train on node7 \(process 4711\)"):
                await join(store, run, role="train")
            await join(store, other, role="train")
            await join(store, run, role="serve")
            await store.leave(first.id)
            second = await join(store, run, role="train")
            assert await store.declare_lost(second, beats=0)
            await join(store, run, role="train")
            assert [member.role for member in await store.members(run)] == ["train", "serve", "train", "train"]

        asyncio.run(scenario())

    def test_a_heartbeat_keeps_a_member(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            member = await join(store, run)
            await store.beat(member, {})
            assert not await store.declare_lost(member, beats=0)
            assert not await store.declare_lost("unknown", beats=0)
            (found,) = await store.members(run)
            assert (found.state, found.beats) == ("live", 1)
            assert await store.declare_lost(member, beats=1)
            assert not await store.declare_lost(member, beats=1)
            await store.leave(member)
            assert [found.state for found in await store.members(run)] == ["lost"]

        asyncio.run(scenario())

    def test_one_of_several_callers_ends_a_member(self, store: Store) -> None:
        run = asyncio.run(create_run(store))
        member = asyncio.run(join(store, run))
        assert sorted(_on_threads(4, lambda _: store.declare_lost(member, beats=0))) == [False, False, False, True]

    @pytest.mark.parametrize("end", ["left", "lost"])
    def test_the_next_member_goes_on_with_the_groups_of_one_that_ended(self, store: Store, end: str) -> None:
        async def scenario() -> None:
            run, member, other = await sampling_run(store, num_members=2)
            (group,) = await claim(store, run, member)
            (kept,) = await claim(store, run, other)
            done = await score(store, run, group)
            running = await add_record(store, run, group.group_id, sample_index=1, member_id=member)
            untouched = await add_record(store, run, kept.group_id, member_id=other)
            for record in (done, running, untouched):
                await store.add_session(session(record))
            if end == "left":
                await store.leave(member)
            else:
                assert await store.declare_lost(member, beats=0)
            found = {record.id: (record.outcome, record.reason) for record in await store.records(run)}
            assert found == {
                done.id: (Outcome.SCORED, ""),
                running.id: (Outcome.CANCELLED, end),
                untouched.id: (Outcome.RUNNING, ""),
            }
            sessions = {row.record_id: row.state for row in await store.sessions(run)}
            assert sessions == {done.id: "open", running.id: "closed", untouched.id: "open"}
            assert not await store.finish_record(attrs.evolve(running, outcome=Outcome.SCORED, reward=1.0))
            (again,) = await claim(store, run, other, version=5)
            assert again == attrs.evolve(group, member_id=other, takeovers=1, scored={0: done.id})
            row = (await store.groups(run))[0]
            assert (row.member_id, row.takeovers, row.state) == (other, 1, "open")

        asyncio.run(scenario())

    @pytest.mark.parametrize("end", ["left", "lost"])
    def test_a_member_that_ended_has_no_claims(self, store: Store, end: str) -> None:
        async def scenario() -> None:
            run, member, other = await sampling_run(store, num_members=2)
            (reserved,) = await claim(store, run, member, task_at=None)
            (group,) = await claim(store, run, member)
            if end == "left":
                await store.leave(member)
            else:
                assert await store.declare_lost(member, beats=0)
            assert [row.id for row in await store.groups(run)] == [group.group_id]
            (again,) = await claim(store, run, other)
            for write in (
                claim(store, run, member),
                store.begin_group(reserved, "t"),
                store.finish_group(group, usable=True),
                add_record(store, run, group.group_id, member_id=member),
            ):
                with pytest.raises(ClaimLostError, match=member):
                    await write
            await store.release_group(group)
            await store.release_group(reserved)
            assert [row.member_id for row in await store.groups(run)] == [other]
            assert not await store.finish_group(again, usable=True)

        asyncio.run(scenario())

    def test_control_changes_only_as_it_is_told(self, store: Store, reopen: Reopen) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            assert await store.control(run) == RunControl()
            await store.set_control(run, limits={"rollout.max_concurrent_rollouts": 64, "a": 0.5})
            paused = await store.set_control(run, wanted="pause", limits={"a": None, "b": 2})
            expected = RunControl(wanted="pause", limits={"rollout.max_concurrent_rollouts": 64, "b": 2})
            assert paused == expected
            await store.admit(run, 3)
            await store.close_sampling(run)
            other = reopen()
            assert await other.control(run) == attrs.evolve(expected, admitted_steps=3, closed=True)
            assert (await other.set_control(run, wanted="stop")).wanted == "stop"
            await other.close()
            assert (await store.control(run)).wanted == "stop"
            for call in (store.control("nowhere"), store.set_control("nowhere", wanted="run")):
                with pytest.raises(StoreError, match="nowhere"):
                    await call

        asyncio.run(scenario())

    @pytest.mark.parametrize("change", ["finish", "release", "evaluate", "lose", "admit", "step", "control", "close"])
    def test_a_change_wakes_all_that_wait_for_one(self, store: Store, change: str) -> None:
        async def prepare() -> tuple[str, Callable[[], Awaitable[Any]]]:
            run, member = await sampling_run(store)
            (group,) = await claim(store, run, member)
            changes: dict[str, Callable[[], Awaitable[Any]]] = {
                "finish": lambda: store.finish_group(group, usable=True),
                "release": lambda: store.release_group(group),
                "evaluate": lambda: store.add_evaluation(run, "eval", ["t"], version=0),
                "lose": lambda: store.declare_lost(member, beats=0),
                "admit": lambda: store.admit(run, 1),
                "step": lambda: store.add_step(step(run, 1)),
                "control": lambda: store.set_control(run, wanted="pause"),
                "close": lambda: store.close_sampling(run),
            }
            return run, changes[change]

        async def scenario() -> None:
            run, make_change = await prepare()
            seen = await asyncio.wait_for(store.changed(run, 0, timeout_s=60), 60)
            assert seen
            waiting = [asyncio.create_task(store.changed(run, seen, timeout_s=600)) for _ in range(2)]
            await asyncio.sleep(0)
            assert not any(item.done() for item in waiting)
            thread = threading.Thread(target=lambda: asyncio.run(_awaited(make_change())))
            thread.start()
            found = await asyncio.wait_for(asyncio.gather(*waiting), 60)
            thread.join()
            assert seen not in found

        asyncio.run(scenario())

    def test_no_change_is_missed_between_two_waits(self, store: Store) -> None:
        async def scenario() -> None:
            run = await create_run(store)
            seen = await store.changed(run, 0, timeout_s=600)
            await store.admit(run, 0)
            later = await asyncio.wait_for(store.changed(run, seen, timeout_s=600), 60)
            assert later != seen
            # Nothing changes any more, so this ends by its own limit.
            await asyncio.wait_for(store.changed(run, later, timeout_s=0.01), 60)

        asyncio.run(scenario())


async def _awaited(awaitable: Awaitable[Any]) -> None:
    await awaitable


def _on_threads(count: int, call: Callable[[int], Awaitable[Any]]) -> list[Any]:
    """Await a call on each of several threads with loops of their own, and return the results."""
    results: list[Any] = []
    together = threading.Barrier(count)

    def on_a_loop_of_its_own(number: int) -> None:
        async def awaited() -> Any:
            return await call(number)

        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(60)
        results.append(asyncio.run(awaited()))

    threads = [threading.Thread(target=on_a_loop_of_its_own, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
