"""The store `mongo`: a `Store` in a database of a MongoDB server, one database per run."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import TYPE_CHECKING, Any, ClassVar

from agentrl_core.api.run_rows import ResumePoint
from agentrl_core.errors import StoreError
from agentrl_core.types import Group
from agentrl_mongo import documents, fencing, groups, queries, resume, training
from agentrl_mongo.reader import IN_LIST, PASSWORD_ENV, MongoReader
from agentrl_mongo.sampler import GIVING_BACK_S, MongoSampler
from agentrl_mongo.seals import MongoSeals
from agentrl_mongo.writing import to_its_end

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.api.group_queue import OvertakeLimits
    from agentrl_core.api.run_rows import StepRow


class MongoStore(MongoSampler, MongoSeals):
    """A `Store` in a database of a MongoDB server.

    Any number of threads and event loops may use it; its client lives on a thread of its own. Every write returns when
    it is on the disks of most servers. While the server is away, calls are repeated for `patience_s`.
    """

    read: ClassVar = MongoReader
    """Opens a database for reading, also while its run is active."""

    @staticmethod
    def secret_variables(options: Mapping[str, Any]) -> Sequence[str]:
        """Return the name of the environment variable with the password."""
        return [str(options.get("password_env", PASSWORD_ENV))]

    async def admit(self, run_id: str, steps: int, *, member_id: str = "") -> None:
        """Let sampling go on as `Admission` allows after `steps` optimizer steps."""

        async def update(database: Any) -> None:
            await fencing.check(database, run_id, member_id, where=self._where)
            # Positions before the admission: whoever reads the run with the new one finds them. A successor that comes
            # in between would have released them with its own first admission.
            wanted, _ = queries.positions_to_repeat(run_id, ["waiting"])
            await database["groups"].update_many(wanted, {"$set": {"again": "released"}})
            change = {"$set": {"admitted_steps": steps}, "$inc": {"revision": 1}}
            await fencing.change_run(database, run_id, change, member_id=member_id, where=self._where)
            self._connection.wake()

        await self._connection.call(f"admit groups of run '{run_id}'", update)

    async def replace_groups(self, run_id: str, count: int, *, member_id: str = "") -> None:
        """Admit `count` more groups for the next step, in place of groups that were taken and then filtered out."""
        # Under a name of its own, so that a repeated call counts once.
        fields = {f"replaced.{uuid.uuid4().hex}": count}
        await self._change_run(f"admit more groups of run '{run_id}'", run_id, fields, member_id)

    async def take_groups(
        self, run_id: str, count: int, *, ahead: OvertakeLimits | None = None, member_id: str = ""
    ) -> list[Group]:
        """Wait until the next `count` training groups are ready; mark them taken and return them."""
        what = f"take groups of run '{run_id}'"
        taker = groups.Taker(name=uuid.uuid4().hex, member_id=member_id)

        async def take(database: Any) -> list[groups.WaitingGroup] | None:
            async with self._connection.taking:
                return await to_its_end(groups.take(database, run_id, count, ahead, taker=taker, where=self._where))

        async def give_back(database: Any) -> None:
            async with self._connection.taking:
                await groups.give_back(database, taker)

        try:
            return await self._groups_of(run_id, await self._until(what, take))
        except asyncio.CancelledError:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(GIVING_BACK_S):
                    await self._connection.call(what, give_back)
            raise

    async def _groups_of(self, run_id: str, taken: Sequence[groups.WaitingGroup]) -> list[Group]:
        """Read the scored episodes of groups."""
        wanted = queries.records_of(run_id, [group.id for group in taken], "scored")
        records = await self._found(f"read groups of run '{run_id}'", "records", wanted, documents.record_from, IN_LIST)
        records.sort(key=lambda record: (record.sample_index, record.attempt))
        episodes = await self._episodes(records)
        return [
            Group(
                id=group.id,
                run_id=run_id,
                task_id=group.task_id,
                index=group.index,
                version=group.version,
                episodes=tuple(episode for episode in episodes if episode.record.group_id == group.id),
            )
            for group in taken
        ]

    async def close_sampling(self, run_id: str, *, member_id: str = "") -> None:
        """Announce that no more groups will come; `take_groups` wakes up and stops waiting for open groups."""
        await self._change_run(f"close sampling of run '{run_id}'", run_id, {"sampling_closed": True}, member_id)

    async def add_step(self, step: StepRow, *, member_id: str = "") -> None:
        """Record an optimizer step, and mark its groups as trained; `replace_groups` counts from 0 again."""
        document = documents.step_to(step) | {"written_by": member_id}

        async def add(database: Any) -> None:
            await self._check(database, "runs", step.run_id, self._no_run(step.run_id))
            await training.add_step(database, document, member_id=member_id, where=self._where)
            self._connection.wake()

        await self._connection.call(f"add step {step.step} of run '{step.run_id}'", add)

    async def void_after(self, run_id: str, step: int, *, member_id: str = "") -> int:
        """Void the steps after `step`, so that the run can continue from there; return the number of voided steps."""
        what = f"void the steps of run '{run_id}' after {step}"
        completed = self._connection.completed

        async def void(database: Any) -> None:
            async with self._connection.claiming:
                await resume.void_after(database, run_id, step, completed, member_id=member_id, where=self._where)
            self._connection.wake()

        # Counted first, because a repeated call finds the steps that it has voided already.
        voided = await self._connection.call(what, lambda database: resume.count_after(database, run_id, step))
        await self._connection.call(what, void)
        return voided

    async def resume_point(self, run_id: str, step: int) -> ResumePoint:
        """Return the position from which sampling and versions continue; only live steps up to `step` count."""
        what = f"find where run '{run_id}' goes on"
        next_index = await self._connection.call(
            what, lambda database: resume.next_index(database, run_id, step), writes=False
        )
        return ResumePoint(step=step, next_index=next_index, last_version=await self.last_version(run_id))
