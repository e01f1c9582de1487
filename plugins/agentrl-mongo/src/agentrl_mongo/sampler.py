"""Sampling half of the store `mongo`: members of a run, their claims of groups, evaluations, and the run's control."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from agentrl_core.errors import StoreError
from agentrl_mongo import claims, documents, fencing, groups, members, rows, sampling_state
from agentrl_mongo.recorder import MongoRecorder
from agentrl_mongo.writing import to_its_end

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from agentrl_core.api.claims import Admission, GroupClaim
    from agentrl_core.api.members import Member, MemberState
    from agentrl_core.api.run_rows import RunControl
    from agentrl_core.types import Record

_T = TypeVar("_T")

_FIRST_LOOK_S, _LAST_LOOK_S = 0.1, 2.0
"""First and longest pause before a waiting call looks for changes of other processes; those of its own wake it."""
GIVING_BACK_S = 5.0
"""Longest time that a cancelled call takes to give back the groups that it took or claimed."""


class MongoSampler(MongoRecorder):
    """Sampling side of the store: members, claims of groups, and the ends of groups."""

    async def join(self, member: Member) -> None:
        """Add a live member of a run. Raises `MemberError`, with the other's name, for a second live trainer."""
        document = rows.member_to(member)

        async def insert(database: Any) -> None:
            await self._check(database, "runs", member.run_id, self._no_run(member.run_id))
            await members.join(database, document, where=self._where)
            if member.role == "train":
                await fencing.enter(database, member.run_id, member.id, where=self._where)

        await self._connection.call(f"join run '{member.run_id}' as {member.name}", insert)

    async def beat(self, member_id: str, report: Mapping[str, Any]) -> bool:
        """Count a heartbeat and replace the member's report; return False, and change nothing, if it is not live."""
        kept = documents.plain(dict(report), f"the report of member {member_id}")

        async def update(database: Any) -> bool:
            change = {"$inc": {"beats": 1}, "$set": {"report": kept}}
            live = {"_id": member_id, "state": "live"}
            return await database["members"].find_one_and_update(live, change, {"_id": 1}) is not None

        return await self._connection.call(f"store the report of member {member_id}", update)

    async def leave(self, member_id: str) -> None:
        """End a live member in an orderly way: its claims are free, and its running records end as `cancelled`."""
        await self._end_member(member_id, "left")

    async def declare_lost(self, member_id: str, *, beats: int) -> bool:
        """End a live member whose heartbeats still are `beats` as `leave` does; return whether this call ended it."""
        return await self._end_member(member_id, "lost", beats=beats)

    async def _end_member(self, member_id: str, state: MemberState, *, beats: int | None = None) -> bool:
        token = uuid.uuid4().hex

        async def end(database: Any) -> bool:
            ended = await members.end(database, member_id, state, token=token, beats=beats)
            if ended:
                self._connection.wake()
            return ended

        return await self._connection.call(f"end member {member_id}", end)

    async def claim_groups(
        self,
        run_id: str,
        member_id: str,
        count: int,
        *,
        admission: Admission,
        size: int,
        version: int,
        task_at: Callable[[int], str] | None,
    ) -> list[GroupClaim]:
        """Claim up to `count` groups for a live member, and return them; never waits.

        `task_at` is called on the thread of the connection.
        """
        what = f"claim groups of run '{run_id}'"
        call = claims.Claiming(
            run_id=run_id,
            member_id=member_id,
            count=count,
            admission=admission,
            size=size,
            version=version,
            task_at=task_at,
            where=self._where,
        )

        async def claim(database: Any) -> list[GroupClaim]:
            # One at a time, so that only claims of several processes can meet.
            async with self._connection.claiming:
                claimed = await to_its_end(claims.claim(database, call, self._connection.completed))
            if call.has_ended_groups:  # they no longer hold back the groups behind them
                self._connection.wake()
            return claimed

        async def give_back(database: Any) -> None:
            async with self._connection.claiming:
                await claims.give_back(database, call)
            self._connection.wake()

        try:
            return await self._connection.call(what, claim)
        except asyncio.CancelledError:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(GIVING_BACK_S):
                    await self._connection.call(what, give_back)
            raise

    async def begin_group(self, claim: GroupClaim, task_id: str) -> GroupClaim:
        """Give a reserved group its task and the next position, and return the claim with both."""
        token, completed = uuid.uuid4().hex, self._connection.completed

        async def begin(database: Any) -> GroupClaim:
            async with self._connection.claiming:
                return await claims.begin(database, claim, task_id, completed, token=token, where=self._where)

        return await self._connection.call(f"begin group {claim.group_id}", begin)

    async def release_group(self, claim: GroupClaim) -> None:
        """Give up a claim without an end of the group, whose running records have ended; the next member gets it."""

        async def release(database: Any) -> None:
            await claims.release(database, claim)
            self._connection.wake()

        await self._connection.call(f"release group {claim.group_id}", release)

    async def finish_group(self, claim: GroupClaim, *, usable: bool, requeue: int = 0) -> bool:
        """Mark a claimed group, all of whose slots are terminal, as ready if it is usable, else as dropped."""
        token = uuid.uuid4().hex

        async def finish(database: Any) -> bool:
            again = await claims.finish(database, claim, usable=usable, requeue=requeue, token=token, where=self._where)
            self._connection.wake()
            return again

        return await self._connection.call(f"finish group {claim.group_id}", finish)

    async def requeue_group(self, run_id: str, group_id: str) -> bool:
        """Let the position of a dropped or dead training group be claimed once more from now on, whatever its tries."""
        token, completed = uuid.uuid4().hex, self._connection.completed

        async def requeue(database: Any) -> bool:
            async with self._connection.claiming:
                asked = await claims.requeue(database, run_id, group_id, completed, token=token, where=self._where)
            self._connection.wake()
            return asked

        return await self._connection.call(f"requeue group {group_id} of run '{run_id}'", requeue)

    async def add_evaluation(
        self,
        run_id: str,
        task_set: str,
        task_ids: Sequence[str],
        *,
        version: int,
        claimable: bool = True,
        member_id: str = "",
    ) -> Sequence[str]:
        """Ask for one episode on each task; return the ids of the groups, in the order of `task_ids`."""
        made = groups.evaluation(run_id, task_set, task_ids, version=version, claimable=claimable)

        async def insert(database: Any) -> None:
            await self._check(database, "runs", run_id, self._no_run(run_id))
            await groups.ask(database, run_id, made, member_id=member_id, where=self._where)
            self._connection.wake()

        await self._connection.call(f"add an evaluation to run '{run_id}'", insert)
        return [group["id"] for group in made]

    async def await_groups(self, run_id: str, group_ids: Sequence[str]) -> list[Record | None]:
        """Wait until no group is open any more; return the last record of each, None for one without records."""
        what = f"wait for groups of run '{run_id}'"
        remaining = list(group_ids)

        async def look(database: Any) -> bool | None:
            return await groups.have_ended(database, run_id, remaining, where=self._where) or None

        await self._until(what, look)
        return await self._connection.call(
            what, lambda database: groups.last_records(database, run_id, group_ids), writes=False
        )

    async def set_control(
        self,
        run_id: str,
        *,
        wanted: Literal["run", "pause", "stop"] | None = None,
        limits: Mapping[str, int | float | None] | None = None,
        cancel: Mapping[str, bool] | None = None,
    ) -> RunControl:
        """Change what the run's members are to do; None leaves a value as it is, or removes one limit."""

        async def change(database: Any) -> RunControl:
            while True:
                after = await sampling_state.set_control(
                    database, run_id, wanted=wanted, limits=limits or {}, cancel=cancel or {}, where=self._where
                )
                if after is not None:
                    self._connection.wake()
                    return after

        return await self._connection.call(f"change the control of run '{run_id}'", change)

    async def changed(self, run_id: str, seen: int, *, timeout_s: float) -> int:  # noqa: ARG002 - of any run
        """Wait until a claim, a group or the run's control may have changed since `seen`, and return a new `seen`."""
        return await self._connection.wait(seen, timeout_s)

    async def _until(self, what: str, look: Callable[[Any], Awaitable[_T | None]]) -> _T:
        """Repeat `look` whenever this process changes something, and from time to time, until it is not None."""
        pause_s = _FIRST_LOOK_S
        while True:
            seen = self._connection.changes
            if (found := await self._connection.call(what, look)) is not None:
                return found
            woken = await self._connection.wait(seen, pause_s) > seen
            pause_s = _FIRST_LOOK_S if woken else min(2 * pause_s, _LAST_LOOK_S)
