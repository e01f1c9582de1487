"""A process may die before any of its writes: what it began is completed or undone, and each position ends once."""

import asyncio
import collections
import subprocess
import sys
from random import Random

import attrs
import pytest

from agentrl_core.api.claims import Admission
from agentrl_core.api.members import Member
from agentrl_core.api.run_rows import RunRow, StepRow
from agentrl_core.types import Outcome, Record
from agentrl_mongo.connection import Connection
from agentrl_mongo.store import MongoStore

RUN = "calm-otter"
ADMISSION = Admission(max_head_offpolicyness=0, tasks_per_step=6, requeue=3, max_takeovers=9)


class Died(BaseException):
    """Ends a call where its process would have died."""


class Cut:
    """Stands for a database of which a process dies before one of its writes, or in the middle of a long one."""

    def __init__(self, database, countdown):
        self._database, self._countdown = database, countdown

    def __getitem__(self, name):
        return CutCollection(self._database[name], self._countdown)


class CutCollection:
    def __init__(self, collection, countdown):
        self._collection, self._countdown = collection, countdown

    def __getattr__(self, name):
        return getattr(self._collection, name)

    async def insert_one(self, document):
        self._count()
        return await self._collection.insert_one(document)

    async def insert_many(self, documents, **options):
        try:
            self._count()
        except Died:
            await self._collection.insert_many(documents[::2], **options)
            raise
        return await self._collection.insert_many(documents, **options)

    async def update_one(self, *arguments, **options):
        self._count()
        return await self._collection.update_one(*arguments, **options)

    async def update_many(self, *arguments, **options):
        try:
            self._count()
        except Died:
            await self._collection.update_one(*arguments, **options)
            raise
        return await self._collection.update_many(*arguments, **options)

    async def find_one_and_update(self, *arguments, **options):
        self._count()
        return await self._collection.find_one_and_update(*arguments, **options)

    def _count(self):
        self._countdown[0] -= 1
        if self._countdown[0] == 0:
            raise Died


def options(version=0):
    return {"admission": ADMISSION, "size": 2, "version": version, "task_at": str}


async def add_record(store, claim, slot, *, attempt=0):
    name = f"{claim.group_id}-{claim.takeovers}-{slot}-{attempt}"
    group = {"run_id": RUN, "task_id": claim.task_id, "group_id": claim.group_id}
    record = Record(id=name, sample_index=slot, attempt=attempt, **group)
    await store.add_record(record, member_id=claim.member_id)
    return record


async def score(store, claim, slot, *, attempt=0):
    record = await add_record(store, claim, slot, attempt=attempt)
    await store.finish_record(attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0))


async def begin(store):
    """Let a run have something of everything; return the claims of the member `doomed`."""
    await store.create_run(RunRow(id=RUN, created_at=1.0, status="running", config={}, components={}))
    await store.add_version(RUN, 0, step=0)
    for name in ("doomed", "lost", "other"):
        await store.join(Member(run_id=RUN, role="sample", id=name))
    await store.admit(RUN, 0)
    dropped, *mine = await store.claim_groups(RUN, "doomed", 3, **options())
    await store.finish_group(dropped, usable=False, requeue=3)
    (abandoned,) = await store.claim_groups(RUN, "lost", 1, **options())
    await score(store, abandoned, 0)
    await add_record(store, abandoned, 1)
    await store.declare_lost("lost", beats=0)
    await add_record(store, mine[0], 0)
    await store.admit(RUN, 0)
    await store.add_evaluation(RUN, "eval", ["a", "b"], version=0)
    return mine


async def take(store, mine):
    for claim in mine:
        for slot in range(claim.size):
            await score(store, claim, slot, attempt=1)
        await store.finish_group(claim, usable=True)
    return await store.take_groups(RUN, 2)


async def add_step(store, taken):
    groups = [group.id for group in taken]
    await store.add_step(StepRow(run_id=RUN, step=1, version=1, groups=groups, records=(), metrics={}))


async def train(store, mine):
    await add_step(store, await take(store, mine))
    await store.add_version(RUN, 1, step=1)
    await store.admit(RUN, 1)
    return await store.claim_groups(RUN, "doomed", 1, **options(version=1))


async def nothing(_, mine):
    return mine


ACTIONS = {
    "claim": (nothing, lambda store, _: store.claim_groups(RUN, "doomed", 9, **options())),
    "drop": (nothing, lambda store, mine: store.finish_group(mine[1], usable=False, requeue=3)),
    "release": (nothing, lambda store, mine: store.release_group(mine[1])),
    "announce": (nothing, lambda store, mine: add_record(store, mine[1], 0)),
    "leave": (nothing, lambda store, _: store.leave("doomed")),
    "ask": (nothing, lambda store, _: store.add_evaluation(RUN, "eval", ["c", "d", "e"], version=0)),
    "step": (take, add_step),
    "resume": (train, lambda store, _: store.void_after(RUN, 0)),
}
"""Name -> what goes before, and the call of which the process dies."""


async def sample_the_rest(store):
    """Go on with another member, after a restart of the trainer, until all is sampled; check every position."""
    await store.declare_lost("doomed", beats=0)
    steps = [row.step for row in await store.steps(RUN) if not row.voided]
    await store.void_after(RUN, len(steps))
    await store.add_version(RUN, 2 + await store.last_version(RUN), step=len(steps))
    await store.admit(RUN, len(steps))
    while claims := await store.claim_groups(RUN, "other", 4, **options(await store.last_version(RUN))):
        for claim in claims:
            for slot in set(range(claim.size)) - set(claim.scored):
                await score(store, claim, slot)
            await store.finish_group(claim, usable=True)
    rows = await store.groups(RUN)
    assert {row.state for row in rows} <= {"ready", "trained", "dropped", "aside"}
    assert {row.member_id for row in rows} == {""}
    consumed = {group for row in await store.steps(RUN) if not row.voided for group in row.groups}
    assert {row.id for row in rows if row.state == "trained"} == consumed
    usable = collections.Counter(row.index for row in rows if not row.is_eval and row.state in ("ready", "trained"))
    assert usable == dict.fromkeys(range(ADMISSION.tasks_per_step + len(consumed)), 1)
    records = await store.records(RUN)
    assert {record.outcome for record in records} <= {Outcome.SCORED, Outcome.CANCELLED}
    ready = {row.id for row in rows if row.state == "ready" and not row.is_eval}
    scored = [(kept.group_id, kept.sample_index) for kept in records if kept.outcome is Outcome.SCORED]
    assert sorted(item for item in scored if item[0] in ready) == sorted(
        (name, slot) for name in ready for slot in (0, 1)
    )


@pytest.mark.slow
@pytest.mark.parametrize("action", ACTIONS)
def test_whatever_write_is_a_process_s_last(url, database, monkeypatch, action):
    real, countdown = Connection._database, [0]

    async def cut(self, **named):
        return Cut(await real(self, **named), countdown) if self.is_doomed else await real(self, **named)

    monkeypatch.setattr(Connection, "is_doomed", False, raising=False)
    monkeypatch.setattr(Connection, "_database", cut)

    async def scenario(last_write):
        name = f"{database}-{last_write}"
        store, other = (MongoStore(url=url, database=name, driver="pymongo", patience_s=30) for _ in range(2))
        try:
            prepare, call = ACTIONS[action]
            prepared = await prepare(store, await begin(store))
            store._connection.is_doomed, countdown[0] = True, last_write
            try:
                await call(store, prepared)
            except Died:
                died = True
            else:
                died = False
            await sample_the_rest(other)
        finally:
            await store.close()
            await other.close()
        return died

    writes = 1
    while asyncio.run(scenario(writes)):
        writes += 1
    assert writes > 1


SAMPLER = """
import asyncio, sys
import attrs
from agentrl_core.api.claims import Admission
from agentrl_core.api.members import Member
from agentrl_core.types import Outcome, Record
from agentrl_mongo.store import MongoStore

async def main():
    store = MongoStore(url=sys.argv[1], database=sys.argv[2], driver=sys.argv[3])
    member = Member(run_id="calm-otter", role="sample")
    await store.join(member)
    print(member.id, flush=True)
    admission = Admission(max_head_offpolicyness=0, tasks_per_step=int(sys.argv[4]), max_takeovers=99)
    options = {"admission": admission, "size": 2, "version": 0, "task_at": str}
    while claims := await store.claim_groups("calm-otter", member.id, 3, **options):
        for claim in claims:
            for slot in {0, 1} - set(claim.scored):
                name = f"{claim.group_id}-{claim.takeovers}-{slot}"
                group = {"run_id": "calm-otter", "task_id": claim.task_id, "group_id": claim.group_id}
                record = Record(id=name, sample_index=slot, **group)
                await store.add_record(record, member_id=member.id)
                await store.finish_record(attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0))
            await store.finish_group(claim, usable=True)
            print("one more", flush=True)
    await store.leave(member.id)
    await store.close()

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["motor", "pymongo"])
def test_samplers_that_are_killed_lose_nothing(url, database, driver):
    num_groups, num_samplers, num_kills = 36, 3, 4
    random = Random(0)

    def start():
        command = [sys.executable, "-c", SAMPLER, url, database, driver, str(num_groups)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        return process, process.stdout.readline().strip()

    async def scenario():
        store = MongoStore(url=url, database=database, driver=driver, patience_s=30)
        await store.create_run(RunRow(id=RUN, created_at=1.0, status="running", config={}, components={}))
        await store.admit(RUN, 0)
        samplers = [start() for _ in range(num_samplers)]
        for _ in range(num_kills):
            process, member = samplers.pop(random.randrange(num_samplers))
            for _ in range(random.randint(1, 3)):
                process.stdout.readline()
            process.kill()
            process.communicate()
            await store.declare_lost(member, beats=0)
            samplers.append(start())
        for process, _ in samplers:
            process.communicate()
            assert process.returncode == 0
        # Groups that were abandoned after the others had found none.
        last, _ = start()
        last.communicate()
        assert last.returncode == 0
        found = await store.groups(RUN), await store.records(RUN), await store.members(RUN)
        await store.close()
        return found

    groups, records, members = asyncio.run(scenario())
    assert sorted(row.index for row in groups) == list(range(num_groups))
    assert {(row.state, row.member_id) for row in groups} == {("ready", "")}
    scored = [(kept.group_id, kept.sample_index) for kept in records if kept.outcome is Outcome.SCORED]
    assert sorted(scored) == sorted((row.id, slot) for row in groups for slot in (0, 1))
    assert {kept.reason for kept in records if kept.outcome is not Outcome.SCORED} <= {"lost"}
    assert collections.Counter(member.state for member in members)["live"] == 0
