"""Claims on a server without transactions: processes that meet, and processes that die between two writes."""

import asyncio
import json
import subprocess
import sys
import threading

import attrs
import pytest
from pymongo.errors import AutoReconnect

from agentrl_core.api.claims import Admission
from agentrl_core.api.members import Member
from agentrl_core.api.run_rows import RunRow, StepRow
from agentrl_core.errors import ClaimLostError, MemberError, StoreError
from agentrl_core.types import Interaction, Outcome, Record
from agentrl_mongo import claims, members, resume, sampling_state, training

RUN = RunRow(id="calm-otter", created_at=1.0, status="running", config={}, components={})
FOUR = Admission(max_head_offpolicyness=1, tasks_per_step=2, requeue=1, max_takeovers=1)
"""Admits four groups before the first step."""


class Died(BaseException):
    """Ends a call where its process would have died."""


async def begin(store, *names):
    """Begin a run with sampling members of these names."""
    await store.create_run(RUN)
    await store.add_version(RUN.id, 0, step=0)
    for name in names:
        await store.join(Member(run_id=RUN.id, role="sample", id=name))
    await store.admit(RUN.id, 0)


async def claim(store, member="a", count=1, *, admission=FOUR, version=0, task_at="task-{}".format):
    return await store.claim_groups(
        RUN.id, member, count, admission=admission, size=2, version=version, task_at=task_at
    )


def record(claimed, slot=0, name=""):
    return Record(
        id=name or f"{claimed.group_id}-{slot}",
        run_id=RUN.id,
        task_id=claimed.task_id,
        group_id=claimed.group_id,
        sample_index=slot,
    )


def call(kept, version):
    ids = {"prompt_ids": (1,), "output_ids": (2,), "logprobs": (-0.5,), "versions": ((version, 1),)}
    return Interaction(id=f"call-{kept.id}", record_id=kept.id, seq=0, messages=(), output={"content": ""}, **ids)


async def score(store, claimed, slot=0):
    kept = record(claimed, slot)
    await store.add_record(kept, member_id=claimed.member_id)
    assert await store.finish_record(attrs.evolve(kept, outcome=Outcome.SCORED, reward=1.0))
    return kept


async def states(store):
    return {row.index: row.state for row in await store.groups(RUN.id)}


# --- admission and positions ---


def test_positions_are_given_once_within_the_admission_and_come_again_after_the_next_admission(store):
    async def scenario():
        await begin(store, "a", "b")
        first, second = await claim(store, "a", 3), await claim(store, "b", 3)
        assert [group.index for group in first + second] == [0, 1, 2, 3]
        assert [group.task_id for group in first] == ["task-0", "task-1", "task-2"]
        assert await claim(store, "a") == []
        assert await store.finish_group(first[0], usable=False, requeue=1)
        (new,) = await claim(store, "a", 5)
        assert new.index == 4
        assert await store.finish_group(first[1], usable=True) is False
        await store.admit(RUN.id, 0)
        await store.finish_group(new, usable=False)
        (again,) = await claim(store, "b", 5)
        assert (again.index, again.tries, again.task_id) == (0, 1, "task-0")
        assert not await store.finish_group(again, usable=False, requeue=1)
        await store.replace_groups(RUN.id, 1)
        assert [group.index for group in await claim(store, "a", 5)] == [5, 6]
        (taken,) = await store.take_groups(RUN.id, 1, ahead=None)
        assert taken.index == 1
        await store.add_step(StepRow(run_id=RUN.id, step=1, version=1, groups=(taken.id,), records=(), metrics={}))
        await store.admit(RUN.id, 1)
        # Three steps' worth may be under way minus the one done: four, and four are.
        assert await claim(store, "a", 5) == []
        assert (await states(store))[1] == "trained"

    asyncio.run(scenario())


def test_a_claim_that_died_after_its_plan_is_completed_by_the_next_claimer(store, raw, monkeypatch):
    async def scenario():
        await begin(store, "a", "b")
        (dropped,) = await claim(store, "a")
        await store.finish_group(dropped, usable=False, requeue=1)
        await store.admit(RUN.id, 0)
        with monkeypatch.context() as patched:

            async def die(*_):
                raise Died

            patched.setattr(sampling_state, "complete", die)
            with pytest.raises(Died):
                await claim(store, "a", 2)
        assert raw["groups"].count_documents({}) == 1
        assert [group.index for group in await claim(store, "b", 4)] == [2, 3]
        assert await store.declare_lost("a", beats=0)
        found = await claim(store, "b", 4)
        assert [(group.index, group.tries, group.takeovers) for group in found] == [(0, 1, 1), (1, 0, 1)]
        assert {
            row.index: row.state for row in await store.groups(RUN.id) if row.id != dropped.group_id
        } == dict.fromkeys(range(4), "open")

    asyncio.run(scenario())


def test_a_claim_whose_reply_was_lost_returns_what_it_had_claimed(store, monkeypatch):
    real, calls = sampling_state.commit, []

    async def commit(*arguments, **named):
        done = await real(*arguments, **named)
        calls.append(done)
        if len(calls) == 1:
            raise AutoReconnect("the reply was lost")
        return done

    async def scenario():
        await begin(store, "a")
        (evaluation,) = await store.add_evaluation(RUN.id, "eval", ["e"], version=0)
        monkeypatch.setattr(sampling_state, "commit", commit)
        found = await claim(store, "a", 3)
        assert {(group.group_id == evaluation, group.index) for group in found} == {(True, 0), (False, 0), (False, 1)}
        assert len(await store.groups(RUN.id)) == 3

    asyncio.run(scenario())
    assert calls == [True]


def test_a_request_whose_reply_was_lost_is_known_again(store, monkeypatch):
    real, calls = claims.requeue, []

    async def requeue(*arguments, **named):
        asked = await real(*arguments, **named)
        calls.append(asked)
        if len(calls) == 1:
            raise AutoReconnect("lost")
        return asked

    async def scenario():
        await begin(store, "a")
        (dropped,) = await claim(store, "a")
        await store.finish_group(dropped, usable=False)
        monkeypatch.setattr(claims, "requeue", requeue)
        assert await store.requeue_group(RUN.id, dropped.group_id)
        assert not await store.requeue_group(RUN.id, dropped.group_id)
        assert calls == [True, True, False]

    asyncio.run(scenario())


def test_a_request_after_the_plan_of_a_claim_that_died_comes_too_late(store, monkeypatch):
    async def scenario():
        await begin(store, "a")
        (dropped,) = await claim(store, "a")
        await store.finish_group(dropped, usable=False, requeue=1)
        await store.admit(RUN.id, 0)
        with monkeypatch.context() as patched:

            async def die(*_):
                raise Died

            patched.setattr(sampling_state, "complete", die)
            with pytest.raises(Died):
                await claim(store, "a")
        assert not await store.requeue_group(RUN.id, dropped.group_id)
        assert [(row.index, row.tries, row.state) for row in await store.groups(RUN.id)] == [
            *((0, 0, "dropped"), (0, 1, "open"))
        ]

    asyncio.run(scenario())


def test_a_cancelled_claim_leaves_no_group_with_its_member(store, monkeypatch):
    began, go_on, real = threading.Event(), threading.Event(), sampling_state.commit

    async def commit(*arguments, **named):
        began.set()
        await asyncio.to_thread(go_on.wait)
        return await real(*arguments, **named)

    async def scenario():
        await begin(store, "a", "b")
        monkeypatch.setattr(sampling_state, "commit", commit)
        claiming = asyncio.create_task(claim(store, "a"))
        await asyncio.to_thread(began.wait)
        claiming.cancel()
        asyncio.get_running_loop().call_soon(go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await claiming
        (found,) = await claim(store, "b")
        assert (found.index, found.takeovers) == (0, 0)

    try:
        asyncio.run(scenario())
    finally:
        go_on.set()


def test_a_claim_that_meets_another_begins_again(store, monkeypatch):
    real, calls = claims._new_groups, []

    async def new_groups(database, *arguments):
        found = await real(database, *arguments)
        calls.append(found)
        if len(calls) == 1:  # what another process would do between the two
            await database["runs"].update_one({"_id": RUN.id}, {"$inc": {"revision": 1, "next_index": 1}})
        return found

    async def scenario():
        await begin(store, "a")
        monkeypatch.setattr(claims, "_new_groups", new_groups)
        assert [group.index for group in await claim(store, "a")] == [1]

    asyncio.run(scenario())
    assert len(calls) == 2


CLAIMER = """
import asyncio, json, sys
from agentrl_core.api.claims import Admission
from agentrl_core.api.members import Member
from agentrl_mongo.store import MongoStore

async def main():
    store = MongoStore(url=sys.argv[1], database=sys.argv[2], driver=sys.argv[3])
    member = Member(run_id="calm-otter", role="sample")
    await store.join(member)
    print("ready", flush=True)
    sys.stdin.readline()
    admission = Admission(max_head_offpolicyness=0, tasks_per_step=30, requeue=5)
    options = {"admission": admission, "size": 1, "version": 0, "task_at": str}
    ended = []
    while found := await store.claim_groups("calm-otter", member.id, 3, **options):
        for group in found:
            # Every third position is unusable at first.
            usable = group.tries > 0 or group.index % 3 > 0
            await store.finish_group(group, usable=usable, requeue=5)
            ended.append((group.index, group.tries))
    print(json.dumps(ended), flush=True)
    await store.leave(member.id)
    await store.close()

asyncio.run(main())
"""


def test_claimers_in_several_processes_get_each_position_once(store, url, database, driver):
    def start():
        command = [sys.executable, "-c", CLAIMER, url, database, driver]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    async def run_them():
        claimers = [start() for _ in range(3)]
        for claimer in claimers:
            assert await asyncio.to_thread(claimer.stdout.readline) == "ready\n"
        outputs = await asyncio.gather(*(asyncio.to_thread(claimer.communicate, "\n") for claimer in claimers))
        return [tuple(item) for output, _ in outputs for item in json.loads(output)]

    async def scenario():
        await begin(store)
        first = await run_them()
        await store.admit(RUN.id, 0)
        return first, await run_them(), await store.groups(RUN.id)

    first, second, groups = asyncio.run(scenario())
    # Thirty usable groups and, for each position that was unusable, another one.
    assert len(set(first)) == len(first)
    assert sorted(first) == [(index, 0) for index in range(len(first))]
    assert sorted(row.state for row in groups).count("ready") == 30
    assert len(set(first + second)) == len(first + second)


# --- members ---


def test_a_second_trainer_is_refused_until_the_first_one_is_gone(store):
    async def scenario():
        await begin(store)
        first = Member(run_id=RUN.id, role="train", id="first", host="node7", pid=4711, packages={"agentrl-core": "1"})
        second = attrs.evolve(first, id="second")
        await store.join(first)
        with pytest.raises(MemberError, match=r"train on node7 \(process 4711\)"):
            await store.join(second)
        assert await store.beat("first", {"version": 3, "waits.for": ["a"]})
        assert not await store.declare_lost("first", beats=0)
        assert await store.declare_lost("first", beats=1)
        assert not await store.declare_lost("first", beats=1)
        assert not await store.beat("first", {})
        await store.join(second)
        found = await store.members(RUN.id)
        lost = attrs.evolve(first, state="lost", beats=1, report={"version": 3, "waits.for": ["a"]})
        assert found == [lost, second]

    asyncio.run(scenario())


def test_a_member_that_joins_while_another_one_claims_keeps_its_groups(store, monkeypatch):
    real, calls = members.free_groups, []

    async def free_groups(database, *arguments):
        if not calls:
            calls.append(arguments)
            await store.join(Member(run_id=RUN.id, role="sample", id="late"))
            await database["groups"].update_many({"state": "open"}, {"$set": {"member_id": "late"}})
        await real(database, *arguments)

    async def scenario():
        await begin(store, "a")
        (group,) = await claim(store)
        await store.release_group(group)
        monkeypatch.setattr(members, "free_groups", free_groups)
        assert [found.index for found in await claim(store, "a")] == [1]
        assert [(row.member_id, row.takeovers) for row in await store.groups(RUN.id)] == [("late", 0), ("a", 0)]

    asyncio.run(scenario())


@pytest.mark.parametrize("dies", [False, True])
def test_groups_of_a_lost_member_are_taken_over_with_their_scored_slots(store, monkeypatch, dies):
    async def scenario():
        await begin(store, "a", "b", "c")
        first, _ = await claim(store, "a", 2)
        scored, running = await score(store, first), record(first, 1)
        await store.add_record(running, member_id="a")
        if dies:  # whoever declares the member lost dies before it ends the records
            with monkeypatch.context() as patched:

                async def die(*_, **__):
                    raise Died

                patched.setattr(members, "free_groups", die)
                with pytest.raises(Died):
                    await store.declare_lost("a", beats=0)
        else:
            assert await store.declare_lost("a", beats=0)
            assert [kept.reason for kept in await store.records(RUN.id)] == ["", "lost"]
        assert [(row.member_id, row.takeovers) for row in await store.groups(RUN.id)] == [("", 1)] * 2
        again, _ = await claim(store, "b", 2)
        assert (again.group_id, again.takeovers, again.scored) == (first.group_id, 1, {0: scored.id})
        assert [kept.reason for kept in await store.records(RUN.id)] == ["", "lost"]
        for late in (
            store.add_record(record(first, 1, "late"), member_id="a"),
            store.finish_group(first, usable=True),
            claim(store, "a"),
        ):
            with pytest.raises(ClaimLostError):
                await late
        await store.release_group(first)
        assert not await store.finish_record(attrs.evolve(running, outcome=Outcome.SCORED, reward=1.0))
        await store.leave("b")
        # Two members were lost: one more than `max_takeovers`.
        assert [group.index for group in await claim(store, "c", 9)] == [2, 3, 4, 5]
        assert (await states(store))[0] == "dead"

    asyncio.run(scenario())


def test_a_record_that_meets_the_loss_of_its_claim_is_cancelled(store, monkeypatch):
    real, calls = claims.check, []

    async def check(database, *arguments, **named):
        calls.append(arguments)
        if len(calls) == 2:
            await members.end(database, "a", "lost", token="by another process")
        return await real(database, *arguments, **named)

    async def scenario():
        await begin(store, "a")
        (group,) = await claim(store)
        monkeypatch.setattr(claims, "check", check)
        with pytest.raises(ClaimLostError):
            await store.add_record(record(group), member_id="a")
        (kept,) = await store.records(RUN.id)
        assert (kept.outcome, kept.reason) == (Outcome.CANCELLED, "lost")

    asyncio.run(scenario())


def test_reserved_groups_get_their_position_when_their_task_comes(store):
    async def scenario():
        await begin(store, "a", "b")
        reserved = await claim(store, "a", 3, task_at=None)
        assert [(group.index, group.task_id) for group in reserved] == [(-1, "")] * 3
        begun = await store.begin_group(reserved[1], "brought")
        assert (begun.index, begun.task_id, begun.group_id) == (0, "brought", reserved[1].group_id)
        await store.release_group(reserved[0])
        with pytest.raises(ClaimLostError):
            await store.begin_group(reserved[0], "late")
        assert {row.state for row in await store.groups(RUN.id)} == {"open", "reserved"}
        await store.leave("a")
        assert [row.id for row in await store.groups(RUN.id)] == [begun.group_id]
        taken_over, *new = await claim(store, "b", 9, task_at=None)
        assert (taken_over.group_id, taken_over.task_id) == (begun.group_id, "brought")
        assert len(new) == 3

    asyncio.run(scenario())


# --- evaluations, control ---


def test_evaluations_are_claimed_first_and_awaited(store):
    async def scenario():
        await begin(store, "a")
        names = await store.add_evaluation(RUN.id, "eval.hard", ["x", "y"], version=0)
        aside = await store.add_evaluation(RUN.id, "sessions", ["z"], version=0, claimable=False)
        waiting = asyncio.create_task(store.await_groups(RUN.id, [*names, *aside]))
        first, second, third = await claim(store, "a", 3)
        assert [(group.group_id, group.task_id) for group in (first, second)] == [(names[0], "x"), (names[1], "y")]
        assert (first.is_eval, first.task_set, first.size, third.is_eval) == (True, "eval.hard", 1, False)
        done = await score(store, first)
        await store.finish_group(first, usable=True)
        await store.finish_group(second, usable=False, requeue=3)
        assert [kept and kept.id for kept in await waiting] == [done.id, None, None]
        unfinished = await store.add_evaluation(RUN.id, "eval", ["v"], version=0)
        await store.close_sampling(RUN.id)
        assert await store.await_groups(RUN.id, unfinished) == [None]

    asyncio.run(scenario())


def test_control_and_changes(store):
    async def scenario():
        await begin(store, "a")
        seen = await store.changed(RUN.id, 0, timeout_s=30)
        waiting = asyncio.create_task(store.changed(RUN.id, seen, timeout_s=30))
        limits = {"rollout.max_concurrent_rollouts": 64, "trainer.lr": 0.5}
        control = await store.set_control(RUN.id, wanted="pause", limits=limits)
        assert await waiting != seen
        assert (control.admitted_steps, control.closed, control.wanted, control.limits) == (0, False, "pause", limits)
        await store.set_control(RUN.id, limits={"trainer.lr": None})
        found = await store.control(RUN.id)
        assert (found.wanted, found.limits) == ("pause", {"rollout.max_concurrent_rollouts": 64})
        assert type(found.limits["rollout.max_concurrent_rollouts"]) is int

    asyncio.run(scenario())


# --- resuming ---


async def make_steps(store):
    """Train position 0 in step 1 and position 1 in step 2; sample positions 2 to 5 with tokens of versions 0 and 2."""
    await begin(store, "a")
    first = await claim(store, "a", 4)
    for group in first[:2]:
        await score(store, group)
        await store.finish_group(group, usable=True)
    for step in (1, 2):
        (taken,) = await store.take_groups(RUN.id, 1)
        await store.add_step(
            StepRow(run_id=RUN.id, step=step, version=step, groups=(taken.id,), records=(), metrics={})
        )
        await store.add_version(RUN.id, step, step=step)
    await store.admit(RUN.id, 2)
    for group, version in zip(first[2:], (0, 2), strict=True):
        await store.add_interaction(RUN.id, call(await score(store, group), version))
        await store.finish_group(group, usable=True)
    later = await claim(store, "a", 2, version=2)
    await store.finish_group(later[0], usable=False, requeue=1)
    return first + later


@pytest.mark.parametrize("ends_after", [None, "sort", "cancel"])
def test_resuming_keeps_what_no_void_version_touched(store, monkeypatch, ends_after):
    async def scenario():
        groups = await make_steps(store)
        if ends_after is not None:

            async def die(*_):
                raise Died

            with monkeypatch.context() as patched:
                patched.setattr(resume, {"sort": "_cancel_records", "cancel": "live_steps"}[ends_after], die)
                with pytest.raises(Died):
                    await store.void_after(RUN.id, 1)
        voided = await store.void_after(RUN.id, 1)
        assert voided == (0 if ends_after else 1)
        rows = {row.id: row.state for row in await store.groups(RUN.id)}
        found = [rows[group.group_id] for group in groups]
        # Position 1 was trained by the void step with live weights, so it may be trained again.
        assert found == ["trained", "ready", "ready", "aside", "aside", "aside"]
        assert (await store.resume_point(RUN.id, 1)).next_index == 1
        assert (await store.control(RUN.id)).admitted_steps == -1
        assert await claim(store, "a", 9) == []
        await store.add_version(RUN.id, 3, step=1)
        await store.admit(RUN.id, 1)
        # Two steps of two groups may be under way, and two groups are ready.
        again = await claim(store, "a", 9, version=3)
        assert [(group.index, group.tries) for group in again] == [(3, 0), (4, 0)]
        assert [group.index for group in await store.take_groups(RUN.id, 2)] == [1, 2]

    asyncio.run(scenario())


def test_a_step_whose_trainer_died_before_its_groups_were_marked_counts(store, monkeypatch):
    async def scenario():
        await begin(store, "a")
        (group,) = await claim(store)
        await store.finish_group(group, usable=True)
        await store.take_groups(RUN.id, 1)
        step = StepRow(run_id=RUN.id, step=1, version=1, groups=(group.group_id,), records=(), metrics={})

        async def inserted(collection, document):
            await collection.insert_one(document)
            raise Died

        with monkeypatch.context() as patched:
            patched.setattr(training, "inserted", inserted)
            with pytest.raises(Died):
                await store.add_step(step)
        assert await states(store) == {0: "taken"}
        assert await store.void_after(RUN.id, 1) == 0
        assert await states(store) == {0: "trained"}
        again = attrs.evolve(step, step=2)
        with pytest.raises(StoreError, match="trained already"):
            await store.add_step(again)

    asyncio.run(scenario())
