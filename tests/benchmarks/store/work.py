"""One sampler's work on a store: claims, and for each claim one record with one interaction of 50 KB.

As a program it is one sampler process: `python -m tests.benchmarks.store.work FILE RUN GROUPS`. It prints a line once
it has joined, begins when its standard input ends, and prints its claims' times as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from pathlib import Path
from random import Random

import attrs

from agentrl_core.api.claims import Admission, GroupClaim
from agentrl_core.api.members import Member
from agentrl_core.api.stores import RunRow, Store
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Interaction, Message, Outcome, Record, Task

AT_ONCE = 8
"""Episodes of a sampler at once; it asks for as many groups as have ended."""
TASKS = 1000
EPISODE_BYTES = 50_000
_PROMPT_TOKENS, _OUTPUT_TOKENS = 2000, 1000


async def create(store: Store, run_id: str, *, tasks: int = TASKS) -> None:
    """Add a run with its tasks, whose sampling may begin."""
    await store.create_run(RunRow(id=run_id, created_at=time.time(), status="running", config={}, components={}))
    batch = 10_000
    for first in range(0, tasks, batch):
        names = [Task(id=task_id(index), data={"n": index}) for index in range(first, min(first + batch, tasks))]
        await store.add_tasks(run_id, names)
    await store.admit(run_id, 0)


def task_id(index: int) -> str:
    """Return the name of the task at a position."""
    return f"task-{index}"


def admission(groups: int) -> Admission:
    """Return limits that admit so many groups before the first step."""
    return Admission(max_head_offpolicyness=0, tasks_per_step=groups)


@attrs.define
class Sampler:
    """A sampling member of a run."""

    store: Store
    member: Member
    limits: Admission
    tasks: int = TASKS
    claim_s: list[float] = attrs.field(factory=list)
    """Seconds of each claim that returned groups."""
    episodes: int = 0

    async def claim(self, count: int) -> list[GroupClaim]:
        """Claim up to `count` groups of one episode."""
        began = time.perf_counter()
        claims = await self.store.claim_groups(
            self.member.run_id,
            self.member.id,
            count,
            admission=self.limits,
            size=1,
            version=0,
            task_at=lambda index: task_id(index % self.tasks),
        )
        if claims:
            self.claim_s.append(time.perf_counter() - began)
        return list(claims)

    async def run(self) -> None:
        """Sample until nothing more may be claimed."""
        running: set[asyncio.Task[None]] = set()
        while True:
            claims = await self.claim(AT_ONCE - len(running))
            running |= {asyncio.create_task(self.episode(claim)) for claim in claims}
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    async def episode(self, claim: GroupClaim) -> None:
        """Announce a record, append its call, and end the record and its group."""
        record = Record(
            id=uuid.uuid4().hex,
            run_id=self.member.run_id,
            task_id=claim.task_id,
            group_id=claim.group_id,
            sample_index=0,
            started_at=time.time(),
        )
        await self.store.add_record(record, member_id=self.member.id)
        await self.store.add_interaction(self.member.run_id, interaction(record.id))
        await self.store.finish_record(
            attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0, finished_at=time.time())
        )
        await self.store.finish_group(claim, usable=True)
        self.episodes += 1


_CONTENT = Random(0).randbytes((EPISODE_BYTES - 4 * _PROMPT_TOKENS - 8 * _OUTPUT_TOKENS) // 2).hex()
_SAMPLED = tuple(Random(1).choices(range(150_000), k=_OUTPUT_TOKENS))
_LOGPROBS = tuple(-Random(2).random() for _ in range(_OUTPUT_TOKENS))
_PROMPT = tuple(Random(3).choices(range(150_000), k=_PROMPT_TOKENS))


def interaction(record_id: str) -> Interaction:
    """Return a call of about 50 KB as stored: tokens of 4 bytes, logprobs of 4 bytes, and text."""
    return Interaction(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        record_id=record_id,
        seq=0,
        prompt_ids=_PROMPT,
        output_ids=_SAMPLED,
        logprobs=_LOGPROBS,
        versions=((0, _OUTPUT_TOKENS),),
        messages=(Message(role="user", content=_CONTENT),),
        output=Message(role="assistant", content="done"),
    )


async def seconds_per_record(folder: Path, *, records: int = 400) -> float:
    """Return the seconds that a SQLite store takes for one record of one process, from its claim to its end."""
    store = SQLiteStore(path=folder / "runs.sqlite")
    await create(store, "measured")
    sampler = Sampler(store, Member(run_id="measured", role="sample"), admission(records))
    await store.join(sampler.member)
    began = time.perf_counter()
    await sampler.run()
    spent = time.perf_counter() - began
    await store.close()
    return spent / sampler.episodes


async def _process(path: Path, run_id: str, groups: int) -> None:
    store = SQLiteStore(path=path)
    sampler = Sampler(store, Member(run_id=run_id, role="sample"), admission(groups))
    await store.join(sampler.member)
    print("joined", flush=True)  # noqa: T201 - the parent waits for it
    await asyncio.to_thread(sys.stdin.read)
    began, cpu_s = time.time(), time.process_time()
    await sampler.run()
    ended, cpu_s = time.time(), time.process_time() - cpu_s
    await store.leave(sampler.member.id)
    await store.close()
    result = {"episodes": sampler.episodes, "claim_s": sampler.claim_s, "began": began, "ended": ended, "cpu_s": cpu_s}
    print(json.dumps(result), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(_process(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
