"""A trainer that is suspended within a write, and its successor: the run is the successor's, at whatever moment."""

import asyncio

import attrs
import pytest

from agentrl_core.api.members import Member
from agentrl_core.api.stores import RunRow, SealRow, StepRow
from agentrl_core.errors import MemberError
from agentrl_mongo.store import MongoStore

RUN = RunRow(id="calm-otter", created_at=1.0, status="running", config={}, components={})


def step(run, group):
    return StepRow(run_id=run, step=1, version=1, groups=(group,), records=(), metrics={})


WRITES = {
    "update_run": lambda store, run, _, member: store.update_run(run, status="failed", member_id=member),
    "admit": lambda store, run, _, member: store.admit(run, 5, member_id=member),
    "replace_groups": lambda store, run, _, member: store.replace_groups(run, 2, member_id=member),
    "take_groups": lambda store, run, _, member: store.take_groups(run, 1, member_id=member),
    "close_sampling": lambda store, run, _, member: store.close_sampling(run, member_id=member),
    "add_evaluation": lambda store, run, _, member: store.add_evaluation(
        run, "eval", ["t"], version=0, member_id=member
    ),
    "add_version": lambda store, run, _, member: store.add_version(run, 7, step=1, member_id=member),
    "add_step": lambda store, run, group, member: store.add_step(step(run, group), member_id=member),
    "add_seal": lambda store, run, _, member: store.add_seal(
        SealRow(run_id=run, number=0, body="{}", digest="d"), records={"record": 0}, member_id=member
    ),
    "void_after": lambda store, run, _, member: store.void_after(run, 0, member_id=member),
}


class Interrupted:
    """A database, or a collection, that calls `seize` before each of its calls."""

    def __init__(self, real, seize):
        self._real, self._seize = real, seize

    def __getitem__(self, name):
        return Interrupted(self._real[name], self._seize)

    async def find(self, *arguments, **named):
        await self._seize()
        async for kept in self._real.find(*arguments, **named):
            yield kept

    def __getattr__(self, name):
        async def call(*arguments, **named):
            await self._seize()
            return await getattr(self._real, name)(*arguments, **named)

        return call


class Succession:
    """A trainer of one run, and a successor that comes before call number `moment` of the trainer's write.

    With `again`, the successor trains a step before the next call already, and not only after the write.
    """

    def __init__(self, store, run, *, moment, again):
        self._store, self._run, self._moment, self._again = store, run, moment, again
        self.former, self._successor = (Member(run_id=run, role="train").id for _ in range(2))
        self._calls, self._seen, self._has_trained = 0, None, False

    async def seize(self):
        self._calls += 1
        if self._calls == self._moment:
            await self._take_over()
        elif self._calls == self._moment + 1 and self._again:
            await self._train()

    @property
    def has_come(self):
        return self._seen is not None

    @property
    def seals(self):
        return self._seen["seals"]

    async def _take_over(self):
        store, run, member = self._store, self._run, self._successor
        await store.declare_lost(self.former, beats=0)
        await store.join(Member(run_id=run, role="train", id=member))
        await store.void_after(run, 0, member_id=member)
        self._seen = {"seals": len(await store.seals(run)), "version": await store.last_version(run)}
        await store.admit(run, 0, member_id=member)
        await store.replace_groups(run, 3, member_id=member)

    async def _train(self):
        """Go on as if there had been no other trainer."""
        store, run, member = self._store, self._run, self._successor
        assert [row.status for row in await store.runs() if row.id == run] == ["running"]
        control = await store.control(run)
        assert (control.admitted_steps, control.closed) == (0, False)
        assert list((await self._raw("runs", "find_one", {"_id": run}))["replaced"].values()) == [3]
        (taken,) = await asyncio.wait_for(store.take_groups(run, 1, member_id=member), 60)
        await store.add_version(run, self._seen["version"] + 1, step=1, member_id=member)
        own = SealRow(run_id=run, number=self.seals, body="{}", digest="of the successor")
        await store.add_seal(own, records={}, member_id=member)
        await store.add_step(step(run, taken.id), member_id=member)
        self._has_trained = True

    async def check(self):
        """Check that the run is the successor's alone."""
        if not self._has_trained:
            await self._train()
        store, run = self._store, self._run
        assert [row.digest for row in (await store.seals(run))[self.seals :]] == ["of the successor"]
        steps = await store.steps(run)
        assert [row.step for row in steps if not row.voided] == [1]
        assert not steps[-1].voided
        assert {row.state for row in await store.groups(run)} <= {"trained", "aside"}
        assert await self._raw("versions", "count_documents", {"run_id": run, "voided": {"$ne": True}}) == 1

    async def _raw(self, collection, call, *arguments):
        return await self._store._connection.call("look", lambda found: getattr(found[collection], call)(*arguments))


@pytest.fixture
def other(url, database):
    made = MongoStore(url=url, database=database)
    yield made
    asyncio.run(made.close())


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("write", WRITES)
def test_a_trainer_whose_successor_comes_at_any_moment_of_a_write_leaves_the_run_to_it(
    store, other, claimed, monkeypatch, write, again
):
    """Before each of the calls that the write makes."""
    real = store._connection._database

    async def came(moment):
        run = f"{write}-{moment}".replace("_", "-")
        between = Succession(other, run, moment=moment, again=again)

        async def interrupted(**options):
            return Interrupted(await real(**options), between.seize)

        await store.create_run(attrs.evolve(RUN, id=run))
        (claim,) = await claimed(store, run)
        await store.finish_group(claim, usable=True)
        await store.join(Member(run_id=run, role="train", id=between.former))
        if write == "add_step":
            await store.take_groups(run, 1, member_id=between.former)
        with monkeypatch.context() as patch:
            patch.setattr(store._connection, "_database", interrupted)
            (outcome,) = await asyncio.gather(
                WRITES[write](store, run, claim.group_id, between.former), return_exceptions=True
            )
        if not between.has_come:
            assert not isinstance(outcome, Exception)
            return False
        # What follows is about a seal that the successor has read, or reads the groups.
        late = (write == "add_seal" and between.seals) or write == "take_groups"
        assert isinstance(outcome, MemberError) or late
        await between.check()
        return True

    async def moments():
        moment = 1
        while await came(moment):
            moment += 1
        return moment

    assert asyncio.run(moments()) > 2
