"""A member of a run that only uses the store: a sampler without agents, or a trainer without a model.

`python -m tests.reliability.worker ROLE RUN.json`. It takes part as `agentrl sample` and `agentrl train` do, by
`Membership`, claims and turns, and may be killed at any time. A trainer keeps its checkpoint in a file, and resumes
from it. Each line, with the machine's monotonic time.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from agentrl_core.api.claims import Admission, GroupClaim
from agentrl_core.api.group_queue import OvertakeLimits
from agentrl_core.api.members import Member, Role
from agentrl_core.api.stores import StepRow, Store
from agentrl_core.errors import ClaimLostError, MemberError
from agentrl_core.run.membership import Membership
from agentrl_core.types import Interaction, Message, Outcome, Record

REFUSED = 3
"""Exit code of a member that was declared lost, or that was not let in."""
CALLS = 2
"""LLM calls of a record."""


@attrs.frozen(kw_only=True)
class Run:
    """The run in which the workers take part."""

    folder: str
    store: str
    """`module:class` of the store."""
    options: Mapping[str, Any]
    """Arguments of the store's class."""
    name: str = "run"
    steps: int
    tasks_per_step: int
    group_size: int = 4
    max_head_offpolicyness: int = 2
    lease_s: float = 2.0
    save_steps: int = 3
    step_s: float = 0.0
    """Time that a step takes beside the store's."""
    episode_s: float = 0.02
    """Longest time that an episode takes beside the store's."""
    samplers: int = 4
    hosts: int = 1
    """Number of hosts that the members seem to run on: members of other hosts know nothing but their heartbeats."""

    @property
    def members(self) -> Mapping[Role, int]:
        """Return the number of members by role."""
        return {"train": 1, "sample": self.samplers}

    def command(self, role: Role) -> Sequence[str]:
        """Return the command of this program."""
        return (sys.executable, "-m", "tests.reliability.worker", role, str(Path(self.folder, "run.json")))

    def heard(self, role: Role, line: str) -> Mapping[str, Any]:
        """Return the event of a line, see `tell`."""
        event: Mapping[str, Any] = json.loads(line)
        return {"work": 1, **event} if event["event"] in ("began", "ended") else event

    def is_refusal(self, code: int) -> bool:
        """Return whether a member ended because it was declared lost, or was not let in."""
        return code == REFUSED

    def open(self) -> Store:
        """Open the store."""
        module, _, name = self.store.partition(":")
        options = {key: Path(value) if key == "path" else value for key, value in self.options.items()}
        made: Store = getattr(importlib.import_module(module), name)(**options)
        return made

    @property
    def admission(self) -> Admission:
        """Return the limits of sampling. A group may lose any number of members: it is we who kill them."""
        return Admission(
            max_head_offpolicyness=self.max_head_offpolicyness,
            tasks_per_step=self.tasks_per_step,
            total_steps=self.steps,
            max_takeovers=1_000_000,
        )


def tell(event: str, **details: object) -> None:
    """Tell the driver of an event, on the standard output."""
    line = json.dumps({"event": event, "at": time.monotonic(), "pid": os.getpid(), **details}) + "\n"
    # One write, so that a process that is killed leaves no half of a line.
    os.write(sys.stdout.fileno(), line.encode())


class Sampler:
    """A sampling member: runs the groups that it claims, and notices that others ended it."""

    def __init__(self, run: Run, store: Store, member_id: str) -> None:
        self._run, self._store, self._member_id = run, store, member_id
        self._source = random.Random(member_id)
        self._numbers = itertools.count()

    async def sample(self) -> None:
        """Run groups until sampling is closed."""
        running: set[asyncio.Task[None]] = set()
        seen = 0
        while True:
            seen = await self._store.changed(self._run.name, seen, timeout_s=0) if seen else 0
            version = max(0, await self._store.last_version(self._run.name))
            claims = await self._store.claim_groups(
                self._run.name,
                self._member_id,
                max(0, 4 - len(running)),
                admission=self._run.admission,
                size=self._run.group_size,
                version=version,
                task_at=lambda index: f"task-{index}",
            )
            running |= {asyncio.create_task(self._group(claim)) for claim in claims}
            control = await self._store.control(self._run.name)
            if control.closed and not running:
                return
            change = asyncio.create_task(self._store.changed(self._run.name, seen, timeout_s=0.2))
            done, _ = await asyncio.wait({*running, change}, return_when=asyncio.FIRST_COMPLETED)
            if change in done:
                seen = change.result()
            else:
                change.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await change
            for task in done - {change}:
                running.discard(task)
                task.result()

    async def _group(self, claim: GroupClaim) -> None:
        """Run the slots of a group that no earlier member has scored."""
        if claim.takeovers:
            tell("took_over", group=claim.group_id, scored=len(claim.scored))
        # A member that is declared lost has lost this group; `beat` tells it so.
        with contextlib.suppress(ClaimLostError):
            slots = [slot for slot in range(claim.size) if slot not in claim.scored]
            await asyncio.gather(*(self._episode(claim, slot) for slot in slots))
            if await self._store.finish_group(claim, usable=True):
                raise AssertionError("a usable group comes again")

    async def _episode(self, claim: GroupClaim, slot: int) -> None:
        record = Record(
            id=f"{self._member_id}-{next(self._numbers)}",
            run_id=self._run.name,
            task_id=claim.task_id,
            group_id=claim.group_id,
            sample_index=slot,
            started_at=time.time(),
        )
        await self._store.add_record(record, member_id=self._member_id)
        tell("began", record=record.id, group=claim.group_id, slot=slot)
        for seq in range(CALLS):
            await asyncio.sleep(self._source.uniform(0, self._run.episode_s))
            version = await self._store.last_version(self._run.name)
            await self._store.add_interaction(self._run.name, _interaction(record.id, seq, version))
        ended = attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0, finished_at=time.time())
        if await self._store.finish_record(ended):
            tell("ended", record=record.id)


def _interaction(record_id: str, seq: int, version: int) -> Interaction:
    return Interaction(
        id=f"chatcmpl-{record_id}-{seq}",
        record_id=record_id,
        seq=seq,
        prompt_ids=tuple(range(200)),
        output_ids=tuple(range(50)),
        logprobs=(-0.5,) * 50,
        versions=((version, 50),),
        messages=(Message(role="user", content="2 + 2?"),),
        output=Message(role="assistant", content="4"),
    )


async def train(run: Run, store: Store, member_id: str) -> None:
    """Take all steps from the checkpoint on, and close the run."""
    checkpoint = Path(run.folder, "checkpoint.json")
    step = json.loads(checkpoint.read_text())["step"] if checkpoint.exists() else 0
    voided = await store.void_after(run.name, step, member_id=member_id)
    version = (await store.resume_point(run.name, step)).last_version
    tell("resumed", step=step, voided=voided)
    if version < 0:
        version = 0
        await store.add_version(run.name, version, step=0, member_id=member_id)
    elif voided or step:
        version += 1
        await store.add_version(run.name, version, step=step, member_id=member_id)
    await store.admit(run.name, step, member_id=member_id)
    while step < run.steps:
        limits = OvertakeLimits(step=step, max_lag=run.max_head_offpolicyness, per_step=run.tasks_per_step)
        groups = await store.take_groups(run.name, run.tasks_per_step, ahead=limits, member_id=member_id)
        records = [episode.record.id for group in groups for episode in group.episodes]
        step += 1
        version += 1
        row = StepRow(
            run_id=run.name,
            step=step,
            version=version,
            groups=[group.id for group in groups],
            records=records,
            metrics={"reward/mean": 1.0},
        )
        await asyncio.sleep(run.step_s)
        await store.add_step(row, member_id=member_id)
        tell("step", step=step)
        await store.add_version(run.name, version, step=step, member_id=member_id)
        if step % run.save_steps == 0 or step == run.steps:
            await store.flush()
            draft = checkpoint.with_suffix(".draft")
            draft.write_text(json.dumps({"step": step}))
            draft.replace(checkpoint)
        await store.admit(run.name, step, member_id=member_id)
    await store.close_sampling(run.name, member_id=member_id)
    await store.update_run(run.name, status="finished", member_id=member_id)


def take_part(role: Role, run: Run) -> None:
    """Join, work to the end of the run, and leave."""
    store = run.open()
    host = os.getpid() % run.hosts
    member = Member(run_id=run.name, role=role, lease_s=run.lease_s, host=f"host-{host}")
    # As on a machine that only the members of one host share.
    member = attrs.evolve(member, process=f"{host}-{member.process}") if host else member
    with Membership(store, [member]) as membership:
        # Another thread than the work's: an exit is the only thing that ends all of it at once.
        membership.on_lost(lambda _: os._exit(REFUSED))
        membership.join()
        tell("joined", member=member.id, role=role)
        asyncio.run(train(run, store, member.id) if role == "train" else Sampler(run, store, member.id).sample())
    asyncio.run(store.close())


def main() -> None:
    """Take part in the run of a file."""
    # No process compares its clock with another's, so each may be wrong by an hour, and jump at every look.
    skew_s, now = float(os.environ.get("WALL_CLOCK_SKEW_S", "0")), time.time
    time.time = lambda: now() + random.uniform(-skew_s, skew_s)
    run = Run(**json.loads(Path(sys.argv[2]).read_text()))
    try:
        take_part(sys.argv[1], run)  # type: ignore[arg-type]
    except (MemberError, ClaimLostError) as error:
        tell("refused", error=str(error))
        sys.exit(REFUSED)


if __name__ == "__main__":
    main()
