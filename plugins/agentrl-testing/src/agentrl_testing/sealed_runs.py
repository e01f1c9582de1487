"""A small run that is sealed as the trainer seals it, for tests of stores and of what looks back at a run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import attrs

from agentrl_core.api.audit import digested
from agentrl_core.api.claims import Admission, GroupClaim
from agentrl_core.api.members import Member
from agentrl_core.api.stores import RunRow, StepRow, Store
from agentrl_core.run.audit import AuditTrail
from agentrl_core.run.directory import RunDirectory
from agentrl_core.types import Interaction, Outcome, Record, Task, ToolCall, ToolOutcome
from agentrl_core.weights.manifest import write_manifest

_TOOLS = ({"type": "function", "function": {"name": "look", "description": "Look at a field."}},)
_CONFIG = {"name": "sealed", "seed": 3, "trainer": {"lr": 0.1}}
_ADMISSION = Admission(max_head_offpolicyness=0, tasks_per_step=1)


class SealedRun:
    """A run in `directory` whose steps each train one group of two records, each with two LLM calls and a tool call."""

    def __init__(self, store: Store, directory: Path) -> None:
        self.store, self.directory, self.id = store, RunDirectory(directory), directory.name
        self.step = self.version = 0
        self._sampler = Member(run_id=self.id, role="sample")
        self.directory.model.mkdir(parents=True)
        for name in ("model.safetensors", "chat_template.jinja", "config.json"):
            self.directory.model.joinpath(name).write_text(f"of {name}")
        asyncio.run(self._announce())
        self.trail = self._trail()

    def _trail(self) -> AuditTrail:
        used = {"losses:grpo": "agentrl-core==0.1.0 agentrl_core.losses.grpo:GRPO"}
        return AuditTrail(self.store, self.directory, config=_CONFIG, used=used, step=self.step, version=self.version)

    async def _announce(self) -> None:
        row = RunRow(id=self.id, created_at=12.5, status="running", config=_CONFIG, components={"losses:grpo": "x"})
        await self.store.create_run(row)
        await self.store.join(self._sampler)
        await self.store.add_version(self.id, 0, step=0)
        tasks = [Task(id=f"task-{number}", data={"query": f"Say {number}."}, answer="a") for number in range(9)]
        await self.store.add_tasks(self.id, tasks)
        await self.store.admit(self.id, 0)

    def train(self, *, save: bool = False, seal: bool = True) -> None:
        """Sample a group and train it; with `save`, write a checkpoint, and weights for other processes."""
        row = asyncio.run(self._train())
        if save:
            self._write(self.directory.path / "weights" / f"version-{self.version}", step=None)
            self._write(self.directory.checkpoints / f"step-{self.step}", step=self.step)
        if seal:
            self.trail.step(row)

    def _write(self, folder: Path, *, step: int | None) -> None:
        folder.mkdir(parents=True)
        folder.joinpath("model.safetensors").write_bytes(bytes([self.step]) * 64)
        write_manifest(folder, version=self.version, step=step)

    async def _train(self) -> StepRow:
        await self._sample()
        (group,) = await self.store.take_groups(self.id, 1)
        self.step, self.version = self.step + 1, self.version + 1
        row = StepRow(
            run_id=self.id,
            step=self.step,
            version=self.version,
            groups=(group.id,),
            records=tuple(episode.record.id for episode in group.episodes),
            metrics={"reward/mean": 0.1 * self.step, "loss/value": float("nan")},
        )
        await self.store.add_version(self.id, self.version, step=self.step)
        await self.store.add_step(row)
        await self.store.admit(self.id, self.step)
        return row

    async def _sample(self) -> None:
        # A resumed run may have a group that is ready already: that of a voided step.
        for claim in await self.store.claim_groups(
            self.id,
            self._sampler.id,
            1,
            admission=_ADMISSION,
            size=2,
            version=self.version,
            task_at=lambda index: f"task-{index}",
        ):
            await self._run(claim)

    async def _run(self, claim: GroupClaim) -> None:
        for place in range(claim.size):
            name = f"{self.id}-{self.version}-{claim.index}-{place}"
            record = Record(
                id=name, run_id=self.id, task_id=claim.task_id, group_id=claim.group_id, sample_index=place,
                started_at=100.5 + claim.index,
            )  # fmt: skip
            await self.store.add_record(record, member_id=self._sampler.id)
            for seq in range(2):
                await self.store.add_interaction(self.id, digested(_call(record, seq, self.version)))
            await self.store.add_tool_call(self.id, digested(_tool_call(record)))
            ended = attrs.evolve(
                record,
                marks=("tool_error",),
                outcome=Outcome.SCORED,
                reward=0.25 * place,
                rewards={f"chatcmpl-{name}-1": 0.25},
                score=0.5,
                score_parts={"near": 0.5},
                score_details={"judge": {"reply": "good", "cost": None}},
                finished_at=101.25 + claim.index,
            )
            await self.store.finish_record(ended)
        await self.store.finish_group(claim, usable=True)

    def resume(self, step: int) -> None:
        """Go back to the state after `step`, as a resumed run does, and begin to seal again."""

        async def rewind() -> None:
            await self.store.void_after(self.id, step)
            self.step, self.version = step, (await self.store.resume_point(self.id, step)).last_version + 1
            await self.store.add_version(self.id, self.version, step=step)
            await self.store.admit(self.id, step)

        asyncio.run(rewind())
        self.trail = self._trail()

    def finish(self) -> str:
        """End the run, and return the chain's head."""
        head = self.trail.end("finished")
        asyncio.run(self.store.update_run(self.id, status="finished"))
        return head


def _call(record: Record, seq: int, version: int) -> Interaction:
    fields: dict[str, Any] = {} if seq == 0 else {"parent": f"chatcmpl-{record.id}-0", "requested": {"top_p": 1}}
    return Interaction(
        id=f"chatcmpl-{record.id}-{seq}",
        record_id=record.id,
        seq=seq,
        prompt_ids=(1, 2, 3),
        output_ids=(7 + seq, 8),
        logprobs=(-0.1, -1.7),
        versions=((version, 2),),
        messages=({"role": "user", "content": f"Look {seq}! è"},),
        output={"role": "assistant", "content": "Done."},
        tools=_TOOLS,
        started_at=100.75,
        finished_at=101.0,
        **fields,
    )


def _tool_call(record: Record) -> ToolCall:
    return ToolCall(
        id=f"tool-{record.id}",
        record_id=record.id,
        seq=0,
        call_id="call-0",
        name="field_look",
        arguments={"field": "è3", "near": None},
        server="fields",
        tool="look",
        sent={"field": "e3"},
        isolation="session",
        outcome=ToolOutcome.TOOL_ERROR,
        error="no such field",
        raw=({"type": "text", "text": "There is no field e3 here."},),
        shown=({"type": "text", "text": "No such field."},),
        middleware=("shorten",),
        started_at=100.875,
        finished_at=100.9375,
    )
