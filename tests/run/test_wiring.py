"""What a run's parts hand each other: steps, versions, seeds, temperatures, options."""

import asyncio
import json
import sqlite3
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from agentrl_core import Trainer, workflow_context
from agentrl_core.batching.advantages import LeaveOneOut
from agentrl_core.batching.credit import TreeCredit
from agentrl_core.batching.filters import ZeroVariance
from agentrl_core.batching.shaping import Overlong, Rank
from agentrl_core.errors import RunError, StoreError
from agentrl_core.gateway import Gateway
from agentrl_core.losses.minirl import MiniRL
from agentrl_core.plugins.manager import PluginManager
from agentrl_core.rollout.order import TaskOrder
from agentrl_core.run import resume
from agentrl_core.run.in_process import InProcessSampling
from agentrl_core.run.loop import TrainingLoop
from agentrl_core.run.threads import LoopThread
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Task


class Stored:
    """What a run left in its store."""

    def __init__(self, directory):
        async def read():
            store = SQLiteStore.read(Path(directory) / "agentrl.db")
            name = Path(directory).name
            self.run = (await store.runs())[-1]
            self.steps = await store.steps(name)
            self.records = await store.records(name)
            self.episodes = {record.id: await store.episode(record.id) for record in self.records}
            await store.close()

        asyncio.run(read())
        with sqlite3.connect(f"file:{directory}/agentrl.db?mode=ro", uri=True) as db:
            query = "SELECT idx, task_id, version, id FROM groups WHERE is_eval = 0 ORDER BY idx"
            self.groups = db.execute(query).fetchall()
        db.close()

    def calls(self, records):
        """The LLM calls of some records, given by id."""
        return [item for record in records for item in self.episodes[record].interactions]


class Asking:
    """Makes one call per episode; `reward(step, here)` is what it returns, steps counted from 0."""

    def __init__(self, reward, *, per_step=8, pause_s=0.0):
        self._reward, self._per_step, self._pause_s, self._begun = reward, per_step, pause_s, 0

    async def run(self, data, *, base_url, api_key, http_client):
        step, self._begun = self._begun // self._per_step, self._begun + 1
        await asyncio.sleep(self._pause_s)
        body = {"model": "default", "messages": data["messages"], "max_tokens": 3}
        headers = {"authorization": f"Bearer {api_key}"}
        (await http_client.post(f"{base_url}/v1/chat/completions", json=body, headers=headers)).raise_for_status()
        return self._reward(step, workflow_context.get())


def uneven(step, here):
    """A reward that gives every group a signal."""
    return here.sample_index % 2


def step_metrics(directory):
    lines = (Path(directory) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [event["metrics"] for event in map(json.loads, lines) if event["event"] == "step_finished"]


def test_every_step_is_trained_stored_saved_and_told_under_its_own_number(project, monkeypatch):
    told = []
    monkeypatch.setattr(PluginManager, "notify", lambda _, name, **given: told.append((name, given)))
    config = project(name="three", seed=7, trainer={"steps": 3, "warmup_steps": 4, "lr": 1e-3, "save_steps": 2})
    directory = Path(Trainer(config).train(workflow=Asking(uneven)).directory)
    stored = Stored(directory)
    assert [metrics["loss/lr"] for metrics in step_metrics(directory)] == pytest.approx([2.5e-4, 5e-4, 7.5e-4])
    assert [(row.step, row.version) for row in stored.steps] == [(1, 1), (2, 2), (3, 3)]
    assert [version for _, _, version, _ in stored.groups] == [0, 0, 1, 1, 2, 2]
    order = TaskOrder([Task(id=f"t{number}", data={}) for number in range(5)], seed=7)
    assert [task for _, task, _, _ in stored.groups] == [order[position].id for position in range(6)]
    for row in stored.steps:
        assert sorted(row.records) == sorted(item.id for item in stored.records if item.group_id in row.groups)
        assert len(row.records) == 8
        assert {call.versions[0][0] for call in stored.calls(row.records)} == {row.step - 1}
    states = [directory / "checkpoints" / f"step-{step}" / "trainer_state.json" for step in (2, 3)]
    assert [json.loads(path.read_text())["version"] for path in states] == [2, 3]
    assert Counter(name for name, _ in told) == {
        "configure": 1, "run_started": 1, "record_scored": 24, "weights_published": 3, "step_finished": 3,
        "run_finished": 1,
    }  # fmt: skip
    assert {given["record"].id for name, given in told if name == "record_scored"} == set(stored.episodes)
    assert [given["version"] for name, given in told if name == "weights_published"] == [1, 2, 3]


def test_a_resumed_run_goes_on_with_the_next_groups_and_fresh_versions(project):
    folder = Path(Trainer(project(name="longer")).train(workflow=Asking(uneven)).directory)
    resume(folder, ["trainer.steps=4"], workflow=Asking(uneven))
    stored = Stored(folder)
    # The restored weights are published as version 3: what is sampled from them is on-policy for step 3.
    assert [(row.step, row.version) for row in stored.steps] == [(1, 1), (2, 2), (3, 4), (4, 5)]
    assert [(index, version) for index, _, version, _ in stored.groups] == [
        (0, 0), (1, 0), (2, 1), (3, 1), (4, 3), (5, 3), (6, 4), (7, 4),
    ]  # fmt: skip
    for row, version in zip(stored.steps, (0, 1, 3, 4), strict=True):
        assert {call.versions[0][0] for call in stored.calls(row.records)} == {version}
    assert [metrics["rollout/lag_max"] for metrics in step_metrics(folder)] == [0.0] * 4
    assert stored.run.status == "finished"
    moments = torch.load(folder / "checkpoints" / "step-4" / "optimizer.pt", weights_only=True)["state"]
    assert {int(state["step"]) for state in moments.values()} == {4}  # the optimizer's own count went on too


def test_training_ends_once_three_steps_together_reach_the_target_and_steps_with_signal_reset_the_count(project):
    means = {0: [0.0, 0.0], 1: [0.2, 0.6], 2: [1.0, 1.0], 3: [0.2, 0.6]}  # together with its two neighbours 0.47, 0.6

    def reward(step, here):
        return means[step][here.sample_index % 2]

    trainer = {"steps": 9, "stop_at_reward": 0.5, "max_steps_without_signal": 2}
    summary = Trainer(project(name="target", trainer=trainer)).train(workflow=Asking(reward))
    assert (summary.status, summary.steps) == ("finished", 4)


def test_an_evaluation_has_its_own_tasks_temperature_and_seeds_and_is_never_trained(project):
    rows = [{"id": f"h{number}", "query": f"Say {number}."} for number in range(4)]
    Path("heldout.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    config = project(
        name="judged",
        data={"eval": {"heldout": "heldout.jsonl"}},
        eval={"every": 1, "tasks": 3, "tasks_during": 1, "temperature": 0.5},
        sampling={"temperature": 0.9},
    )
    summary = Trainer(config).train(workflow=Asking(uneven, per_step=99))
    assert [(report.step, dict(report.records)) for report in summary.evals] == [
        (0, {"heldout": 3}), (1, {"heldout": 1}), (2, {"heldout": 3}),
    ]  # fmt: skip
    stored = Stored(summary.directory)
    evaluated = [record for record in stored.records if record.is_eval]
    trained = [record for row in stored.steps for record in row.records]
    assert Counter(record.task_id for record in evaluated) == {"h0": 3, "h1": 2, "h2": 2}
    assert set(trained) == {record.id for record in stored.records if not record.is_eval}
    assert {call.sampling.temperature for call in stored.calls(trained)} == {0.9}
    assert {call.sampling.temperature for record in evaluated for call in stored.calls([record.id])} == {0.5}
    seeds = {(record.task_id, call.sampling.seed) for record in evaluated for call in stored.calls([record.id])}
    assert len(seeds) == 3  # every evaluation on equal terms
    assert not {seed for _, seed in seeds} & {call.sampling.seed for call in stored.calls(trained)}


def test_tasks_keep_their_order_where_told_and_none_is_sampled_beyond_the_last_step(project):
    rollout = {"max_head_offpolicyness": 3, "max_concurrent_rollouts": 4}
    seeds = []
    for seed in (1, 2):
        config = project(name=f"seed-{seed}", seed=seed, data={"shuffle": False}, rollout=rollout)
        stored = Stored(Trainer(config).train(workflow=Asking(uneven)).directory)
        assert [task for _, task, _, _ in stored.groups] == ["t0", "t1", "t2", "t3"]
        seeds.append({call.sampling.seed for call in stored.calls(stored.episodes)})
        assert len(seeds[-1]) == 16
    assert not seeds[0] & seeds[1]


def test_a_tasks_own_scorer_is_asked_rather_than_the_default(project):
    Path("judge.py").write_text("def fair(request):\n    return 0.75\n", encoding="utf-8")
    rows = [{"id": f"t{number}", "query": "?", "answer": "x", "scorer": "fair"} for number in range(2)]
    Path("tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    config = project("Unscored", name="fair", trainer={"steps": 1}, scorers={"fair": {"use": "judge.py:fair"}})
    assert {record.reward for record in Stored(Trainer(config).train().directory).records} == {0.75}


def test_the_time_of_the_agents_is_not_told_as_the_learners(project):
    began = time.perf_counter()
    summary = Trainer(project(name="slow", trainer={"steps": 1})).train(workflow=Asking(uneven, pause_s=2.0))
    (metrics,) = step_metrics(summary.directory)
    assert metrics["time/rollout_s"] >= 2.0
    assert metrics["time/train_s"] < time.perf_counter() - began - 2.0
    assert metrics["time/step_s"] >= metrics["time/rollout_s"] + metrics["time/train_s"]


def test_after_a_warm_start_the_engine_samples_from_the_tuned_weights(project):
    chat = {"messages": [{"role": "user", "content": "Say a."}, {"role": "assistant", "content": "a"}]}
    Path("chats.jsonl").write_text(json.dumps(chat) + "\n", encoding="utf-8")
    config = project(name="warm", warm_start={"data": "chats.jsonl", "steps": 3}, trainer={"steps": 1})
    (metrics,) = step_metrics(Trainer(config).train(workflow=Asking(uneven)).directory)
    assert metrics["loss/logprob_gap_max"] < 1e-4


def test_a_failed_run_is_stored_as_failed_with_the_reason(project):
    with pytest.raises(RunError, match="no_llm_call"):
        Trainer(project("Silent", name="failed", rollout={"failure_window": 8})).train()
    run = Stored("runs/failed").run
    assert run.status == "failed"
    assert "no_llm_call" in run.error


@pytest.fixture
def closed(monkeypatch):
    """Names of what was closed."""
    found = []

    def note(kind):
        close = kind.close

        def noted(self):
            found.append(kind.__name__)
            return close(self)

        monkeypatch.setattr(kind, "close", noted)

    for kind in (Gateway, LoopThread):
        note(kind)
    return found


def test_engine_gateway_and_agents_close_where_the_store_fails_before_the_loop(project, monkeypatch, closed):
    def fail(_):
        raise StoreError("the store is gone")

    monkeypatch.setattr(TrainingLoop, "_earlier_steps", fail)
    with pytest.raises(StoreError, match="the store is gone"):
        Trainer(project(name="early")).train(workflow=Asking(uneven))
    assert closed == ["Gateway", "LoopThread"]


def test_engine_gateway_and_agents_close_where_a_tracker_fails_at_the_last_notice(project, monkeypatch, closed):
    def fail(_):
        raise RunError("the tracker is gone")

    monkeypatch.setattr(InProcessSampling, "_tell_without_effect", fail)
    with pytest.raises(RunError, match="the tracker is gone"):
        Trainer(project(name="late", trainer={"steps": 1})).train(workflow=Asking(uneven))
    assert closed == ["Gateway", "LoopThread"]


def test_every_option_about_training_reaches_the_learner(project, monkeypatch):
    given = {}

    def learner(**arguments):
        given.update(arguments)
        raise RunError("seen enough")

    monkeypatch.setattr("agentrl_core.training.learner.Learner", learner)
    config = project(
        name="options",
        seed=5,
        model={"dtype": "bfloat16"},
        loss={"use": "minirl", "clip": 0.3, "aggregation": "seq_mean_token_sum", "unit": "interaction"},
        advantage={"use": "leave_one_out", "scale": 2.0},
        shaping=["rank", {"use": "overlong", "max_tokens": 9, "buffer_tokens": 3}],
        filters=[{"use": "zero_variance", "tolerance": 0.25}],
        rollout={"agent": {"turn_discount": 0.5}},
        trainer={"betas": [0.5, 0.6], "max_grad_norm": 0.7, "device": "cpu"},
    )
    with pytest.raises(RunError, match="seen enough"):
        Trainer(config).train()
    assert given["loss"] == MiniRL(clip=0.3)
    assert (given["aggregation"].aggregation, given["aggregation"].unit) == ("seq_mean_token_sum", "interaction")
    assert given["advantage"] == LeaveOneOut(scale=2.0)
    assert given["credit"] == TreeCredit(turn_discount=0.5)
    assert given["shaping"] == [Rank(), Overlong(max_tokens=9, buffer_tokens=3)]
    assert given["filters"] == [ZeroVariance(tolerance=0.25)]
    assert (given["config"].betas, given["config"].max_grad_norm) == ((0.5, 0.6), 0.7)
    assert (given["seed"], given["dtype"], str(given["device"])) == (5, "bfloat16", "cpu")
