"""Fixtures for tests of commands: a stored run, and a function that calls the command line."""

from __future__ import annotations

import asyncio
import json

import attrs
import pytest
from tests.cli.audited import trained_project  # noqa: F401  # a fixture of several files

from agentrl_core.api.stores import RunRow, StepRow
from agentrl_core.cli import main
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import FinishReason, Interaction, Outcome, Record, Task


@attrs.frozen
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def agentrl(capsys, tmp_path, monkeypatch):
    """Call `agentrl` with these arguments, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = main(arguments)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


TOOLS = ({"type": "function", "function": {"name": "move"}}, {"name": "look"})


def interactions(record_id):
    """A dialogue whose second call has two continuations, the later of which goes on."""

    def call(seq, parent, messages, output, **fields):
        default = {
            "prompt_ids": (1,) * 10,
            "output_ids": (2,) * 4,
            "logprobs": (-0.5,) * 4,
            "versions": ((3, 4),),
            "tools": TOOLS,
        }
        return Interaction(
            id=f"call-{seq}",
            record_id=record_id,
            seq=seq,
            parent=parent,
            messages=messages,
            output={"role": "assistant", **output},
            **{**default, **fields},
        )

    def move(direction):
        return {"id": "c", "function": {"name": "move", "arguments": json.dumps({"to": direction})}}

    question = ({"role": "system", "content": "Walk."}, {"role": "user", "content": "Go to\n(3, 4)."})
    wall = ({"role": "tool", "tool_call_id": "c", "content": "a wall\x1b[2J"},)
    return [
        call(0, None, question, {"content": None, "tool_calls": [move("north"), move("east")]}, cached_tokens=7),
        call(1, "call-0", wall, {"content": "Hm.", "tool_calls": [move("south")]}, versions=((3, 2), (4, 2))),
        call(2, "call-1", wall, {"content": "lost"}, finish_reason=FinishReason.LENGTH, tool_errors=1),
        call(3, "call-1", ({"role": "user", "content": [{"type": "text", "text": "there"}, {"type": "image"}]},), {}),
        call(4, "call-3", (), {"content": "done"}, requested={"temperature": 0.2}, trainable=False, tools=()),
    ]


async def fill(store, name, *, created_at, reward):
    await store.create_run(
        RunRow(
            id=name,
            created_at=created_at,
            status="running",
            config={"seed": 0},
            components={"losses:grpo": "agentrl-core==0.1.0 agentrl_core.losses.grpo:GRPO"},
        )
    )
    await store.add_tasks(name, [Task(id="maze", data={}, answer="(3, 4)"), Task(id="hall", data={})])
    await store.add_version(name, 0, step=0)
    groups = [f"{name}-g{index}" for index in range(2)]
    added = await store.add_evaluation(name, "train", ("maze", "hall"), version=0)
    for names in zip(groups, added, strict=True):
        # Tests compare what is printed, so the ids must not be random.
        store._connection.execute("UPDATE groups SET id = ? WHERE id = ?", names)
    record = Record(
        id=f"{name}-aaaa", run_id=name, task_id="maze", group_id=groups[0], sample_index=0, started_at=100.0
    )
    await store.add_record(record)
    for interaction in interactions(record.id):
        await store.add_interaction(name, interaction)
    await store.finish_record(
        attrs.evolve(
            record,
            outcome=Outcome.SCORED,
            reward=reward,
            rewards={"call-4": reward},
            score=0.5,
            score_parts={"near": 0.5},
            score_details={
                "judged": {"answer": "done", "from": "reply", "looked_for": "<answer>…</answer>"},
                "judge": {"asked": ["a", 1], "calls": [{"reply": "two\nlines"}], "cost": None},
            },
            finished_at=101.5,
        )
    )
    failed = Record(
        id=f"{name}-bbbb", run_id=name, task_id="hall", group_id=groups[1], sample_index=1, attempt=1, is_eval=True
    )
    await store.add_record(attrs.evolve(failed, started_at=102.0))
    await store.finish_record(attrs.evolve(failed, outcome=Outcome.FAILED, reason="ValueError", detail="no\nmap"))
    for step in (1, 2):
        metrics = {"reward/mean": reward / step, "loss/value": float("nan")}
        row = StepRow(run_id=name, step=step, version=step, groups=(), records=(record.id,), metrics=metrics)
        await store.add_step(row)
        await store.add_version(name, step, step=step)
    await store.void_after(name, 1)
    await store.close()


@pytest.fixture
def make_run(tmp_path):
    """Make a run under `runs/`."""

    def make(name, *, created_at=1.0, reward=1.0):
        asyncio.run(
            fill(SQLiteStore(path=tmp_path / "runs" / name / "agentrl.db"), name, created_at=created_at, reward=reward)
        )
        return tmp_path / "runs" / name

    return make
