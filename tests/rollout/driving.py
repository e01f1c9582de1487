"""A real store that tells what happened in it, and a scheduler with the trainer's part of a test beside it."""

import asyncio
from types import SimpleNamespace

from agentrl_core.api.members import Member
from agentrl_core.api.stores import RunRow
from agentrl_core.rollout.scheduler import Scheduler
from agentrl_core.run.group_supply import GroupSupply
from agentrl_core.stores.sqlite import SQLiteStore

MEMBER = Member(run_id="run", role="sample", id="me")
PATIENCE_S = 30


class WatchedStore(SQLiteStore):
    """Notes new groups, endings of groups, and records, in the order in which they come."""

    def __init__(self, path):
        super().__init__(path=path)
        self.claimed, self.usable, self.now = [], {}, {}

    def renew(self):
        """Begin anew, with an empty database."""
        asyncio.run(self.close())
        self.__init__(self.path.with_name(f"again-{self.path.name}"))
        asyncio.run(self.begin())

    async def begin(self):
        """Add the run, and the member that samples."""
        await self.create_run(RunRow(id="run", created_at=0.0, status="running", config={}, components={}))
        await self.join(MEMBER)

    async def claim_groups(self, *args, **options):
        claims = await super().claim_groups(*args, **options)
        self.claimed += [
            SimpleNamespace(
                id=claim.group_id,
                task_id=claim.task_id,
                index=claim.index,
                size=claim.size,
                version=claim.version,
                is_eval=claim.is_eval,
            )
            for claim in claims
        ]
        return claims

    async def finish_group(self, claim, **options):
        again = await super().finish_group(claim, **options)
        self.usable[claim.group_id] = options["usable"]
        return again

    async def add_record(self, record, **options):
        await super().add_record(record, **options)
        self.now[record.id] = record

    async def finish_record(self, record):
        ours = await super().finish_record(record)
        self.now[record.id] = record
        return ours

    def of(self, task_id):
        return [record for record in self.now.values() if record.task_id == task_id]


class DrivenScheduler(Scheduler):
    """A scheduler whose test plays the trainer: it admits steps, replaces groups and asks for evaluations."""

    def __init__(self, *, tasks, store, **options):
        self.policy_version, self.tasks = 0, tasks
        super().__init__(
            tasks=tasks, store=store, run_id="run", member_id=MEMBER.id, version=lambda: self.policy_version, **options
        )
        self.supply = GroupSupply(store, "run")

    async def run(self):
        await self.supply.open(self.tasks, 0)
        await super().run()

    async def publish(self, version, steps_done):
        self.policy_version = version
        await self.supply.admit(steps_done)

    async def evaluate(self, tasks, *, name="heldout"):
        return await self.supply.evaluate(name, tasks, version=self.policy_version)

    async def settled(self):
        """Wait until every group that may run has ended."""
        async with asyncio.timeout(PATIENCE_S):
            while not self._is_settled():
                await asyncio.sleep(0)

    def _is_settled(self):
        known = self._seen == self._store._changed.count and self._nothing_left_at == self._changes
        return self._error is not None or (known and not self._groups)


async def until(condition):
    """Let the loop run until `condition()` holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0)


async def stopped(scheduler, running):
    scheduler.stop()
    async with asyncio.timeout(PATIENCE_S):
        await running
