"""Claims start the same groups, in the same order, as the two counters did with which one process paced itself.

`Capacity` and `TaskQueue` below are those counters, as models.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl_core.api.claims import Admission
from agentrl_core.api.members import Member
from agentrl_core.api.stores import RunRow, StepRow
from agentrl_core.stores.sqlite import SQLiteStore

_runs = (f"run-{number}" for number in itertools.count())


@attrs.define(kw_only=True)
class Capacity:
    """Groups that may start, counted over the whole run."""

    max_head_offpolicyness: int
    tasks_per_step: int
    total_steps: int
    steps_done: int = 0
    accepted: int = 0
    running: int = 0

    def groups(self):
        steps = min(self.max_head_offpolicyness + self.steps_done + 1, self.total_steps)
        return steps * self.tasks_per_step - (self.accepted + self.running)


@attrs.define
class TaskQueue:
    """Positions that were put back and released, then new ones."""

    requeue: int
    next_index: int = 0
    waiting: list = attrs.field(factory=list)
    released: list = attrs.field(factory=list)

    def next(self):
        if self.released:
            return heapq.heappop(self.released)
        self.next_index += 1
        return self.next_index - 1, 0

    def put_back(self, index, tries):
        if tries < self.requeue:
            self.waiting.append((index, tries + 1))

    def release(self):
        for item in self.waiting:
            heapq.heappush(self.released, item)
        self.waiting.clear()


@pytest.fixture
def store(tmp_path):
    store = SQLiteStore(path=tmp_path / "agentrl.db")
    yield store
    asyncio.run(store.close())


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lag=st.integers(0, 2),
    per_step=st.integers(1, 3),
    total=st.integers(1, 5),
    requeue=st.integers(0, 2),
    events=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=60),
)
def test_claims_start_what_the_counters_of_one_process_did(store, lag, per_step, total, requeue, events):
    capacity = Capacity(max_head_offpolicyness=lag, tasks_per_step=per_step, total_steps=total)
    queue = TaskQueue(requeue)
    admission = Admission(
        max_head_offpolicyness=lag, tasks_per_step=per_step, total_steps=total, requeue=requeue, max_takeovers=0
    )
    run = next(_runs)

    async def scenario():
        member = Member(run_id=run, role="sample")
        await store.create_run(RunRow(id=run, created_at=0.0, status="running", config={}, components={}))
        await store.join(member)
        await store.admit(run, 0)
        running, ready, num_replaced = [], [], 0
        for place, event in events:
            claims = await store.claim_groups(
                run, member.id, 99, admission=admission, size=1, version=capacity.steps_done, task_at=str
            )
            expected = []
            while capacity.groups() > 0:
                expected.append(queue.next())
                capacity.running += 1
            assert [(claim.index, claim.tries) for claim in claims] == expected
            running += claims
            if event in (0, 1) and running:
                claim = running.pop(place % len(running))
                await store.finish_group(claim, usable=event == 1, requeue=requeue)
                capacity.running -= 1
                if event == 1:
                    capacity.accepted += 1
                    ready.append(claim)
                else:
                    queue.put_back(claim.index, claim.tries)
            elif event == 2 and len(ready) > num_replaced:
                # A filter drops a group of the next step.
                await store.replace_groups(run, 1)
                capacity.accepted -= 1
                num_replaced += 1
            elif event == 3 and not running and len(ready) >= per_step + num_replaced:
                taken = await store.take_groups(run, per_step + num_replaced)
                names = [group.id for group in taken]
                ready = [claim for claim in ready if claim.group_id not in names]
                capacity.steps_done += 1
                num_replaced = 0
                done = capacity.steps_done
                await store.add_step(StepRow(run_id=run, step=done, version=done, groups=names, records=(), metrics={}))
                await store.admit(run, done)
                queue.release()

    asyncio.run(scenario())
