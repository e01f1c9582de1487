"""The whole loop on a random policy: agent, gateway, engine, store, learner, weights."""

import asyncio
import contextlib
import itertools
import json
import os
import re
import shutil
import socket
import sqlite3
import stat
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentrl_core import GenerationHyperparameters, ModelRequest, RolloutWorkflow, Trainer
from agentrl_core.api.kept_tokens import ids_of
from agentrl_core.engines.cache import KeyValueCache
from agentrl_core.errors import ConfigError, NothingLearnedError, RunError, TrainingError, UsageError
from agentrl_core.run.trainer import resume
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.training.learner import Learner
from agentrl_core.types import Outcome
from agentrl_testing.policy import toy_policy


def weights(summary, step):
    return load_file(Path(summary.directory) / "checkpoints" / f"step-{step}" / "model.safetensors")


def events(summary):
    text = (Path(summary.directory) / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def steps_of(summary):
    return [event["metrics"] for event in events(summary) if event["event"] == "step_finished"]


def records(summary):
    store = SQLiteStore(path=Path(summary.directory) / "agentrl.db")
    found = asyncio.run(store.records(summary.name))
    asyncio.run(store.close())
    return found


def status_of(folder):
    store = SQLiteStore(path=folder / "agentrl.db")
    (row,) = asyncio.run(store.runs())
    asyncio.run(store.close())
    return row.status


def test_learning_rate_zero_leaves_the_weights_and_another_changes_them(project, policy_dir):
    still = Trainer(project(name="still", trainer={"lr": 0.0})).train()
    moved = Trainer(project(name="moved")).train()
    start = load_file(policy_dir / "model.safetensors")
    assert all((weights(still, 2)[name] == start[name]).all() for name in start)
    assert any((weights(moved, 2)[name] != start[name]).any() for name in start)


def test_a_run_reports_steps_outcomes_and_cpu_seconds(project):
    summary = Trainer(
        project(name="whole", eval={"every": 1, "tasks": 3, "tasks_during": 3}, data={"eval": "tasks.jsonl"})
    ).train()
    assert (summary.status, summary.steps, summary.version) == ("finished", 2, 2)
    assert summary.outcomes["scored"] == 2 * 2 * 4 + 3 * 3  # two steps, and evaluations before, between and after
    assert summary.llm_calls == summary.outcomes["scored"]
    assert [report.step for report in summary.evals] == [0, 1, 2]
    assert set(summary.cpu_seconds) == {"agent", "gateway", "engine", "learner"}
    assert all(seconds > 0 for seconds in summary.cpu_seconds.values())


def test_bf16_weights_train_with_masters_that_a_resumption_restores(project):
    summary = Trainer(project(name="narrow", model={"dtype": "bfloat16"}, trainer={"max_logprob_gap": 1.0})).train()
    assert (summary.status, summary.steps) == ("finished", 2)
    assert {value.dtype for value in weights(summary, 2).values()} == {torch.bfloat16}
    folder = Path(summary.directory) / "checkpoints/step-2"
    masters = torch.load(folder / "master_weights.pt", weights_only=True)
    assert any((master != master.bfloat16()).any() for master in masters.values())
    longer = resume(Path(summary.directory), ["trainer.steps=3", "model.dtype=float32"])
    assert (longer.status, longer.steps) == ("finished", 3)
    assert {value.dtype for value in weights(longer, 3).values()} == {torch.float32}


def test_the_learner_computes_the_engines_logprobs(project):
    summary = Trainer(project(name="gap")).train()
    gaps = [step["loss/logprob_gap_max"] for step in steps_of(summary)]
    assert len(gaps) == 2
    assert max(gaps) < 1e-4


@pytest.mark.parametrize("lag", [0, 1])
def test_top_p_and_top_k_train_exactly(project, lag):
    """From sampling through store and packing to the learner: it renormalises over what the engine sampled from."""
    sampling = {"top_p": 0.9, "top_k": 20}
    rollout = {"max_head_offpolicyness": lag}
    summary = Trainer(project(name="nucleus", sampling=sampling, rollout=rollout, trainer={"steps": 3})).train()
    fresh = [step for step in steps_of(summary) if "loss/logprob_gap_max" in step]
    assert max(step["loss/logprob_gap_max"] for step in fresh) < 1e-5
    assert all("loss/certain_share" in step for step in steps_of(summary))
    store = SQLiteStore.read(path=Path(summary.directory) / "agentrl.db")
    for record in asyncio.run(store.records(summary.name)):
        for call in asyncio.run(store.episode(record.id)).interactions:
            assert all(token in ids_of(mask) for token, mask in zip(call.output_ids, call.kept, strict=True))
            assert max(len(ids_of(mask)) for mask in call.kept) <= 20
    asyncio.run(store.close())


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_any_local_chat_model_directory_trains(project, tmp_path, architecture):
    path = toy_policy(tmp_path / architecture, architecture=architecture, seed=1)
    summary = Trainer(project(name=architecture, model={"path": str(path)}, trainer={"steps": 1})).train()
    (step,) = [event for event in events(summary) if event["event"] == "step_finished"]
    assert step["metrics"]["loss/logprob_gap_max"] < 1e-4
    changed, start = weights(summary, 1), load_file(path / "model.safetensors")
    assert any((changed[name] != start[name]).any() for name in start)
    loaded = AutoModelForCausalLM.from_pretrained(Path(summary.directory) / "checkpoints" / "step-1")
    assert loaded.config.model_type == architecture


def test_a_step_takes_its_groups_by_priority(project, tmp_path):
    rows = [{"id": f"t{number}", "query": "Say a.", "answer": "a", "weight": number % 3} for number in range(5)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    order = {"use": "priority", "field": "weight"}
    config = project(name="ranked", data={"shuffle": False}, rollout={"tasks_per_step": 5, "order": order})
    summary = Trainer(config).train()
    store = SQLiteStore.read(path=Path(summary.directory) / "agentrl.db")
    tasks = {group.id: group.task_id for group in asyncio.run(store.groups(summary.name))}
    steps = asyncio.run(store.steps(summary.name))
    asyncio.run(store.close())
    assert [[tasks[group] for group in step.groups] for step in steps] == [["t2", "t1", "t4", "t0", "t3"]] * 2


def test_a_priority_that_is_no_number_is_refused_with_its_line(project, tmp_path):
    with (tmp_path / "tasks.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"id": "odd", "query": "?", "answer": "a", "priority": "high"}) + "\n")
    with pytest.raises(ConfigError, match=r"tasks\.jsonl:6: task 'odd': rollout\.order .*priority.*'high'"):
        Trainer(project(name="odd", rollout={"order": "priority"})).train()
    with pytest.raises(ConfigError, match=r"rollout\.order: no group order named 'freshes' \(did you mean freshest\?"):
        Trainer(project(name="odd", rollout={"order": "freshes"})).train()


@pytest.mark.parametrize("order", ["freshest", "letters.py:LatestFirst"])
def test_an_asynchronous_run_in_another_order_keeps_its_bound(project, tmp_path, order):
    with (tmp_path / "letters.py").open("a", encoding="utf-8") as file:
        file.write("\n\nclass LatestFirst:\n    def urgency(self, group):\n        return group.index\n")
    rollout = {"max_head_offpolicyness": 1, "max_concurrent_rollouts": 8, "order": order}
    summary = Trainer(project(name="fresh", rollout=rollout, trainer={"steps": 6})).train()
    assert (summary.status, summary.steps) == ("finished", 6)
    assert max(step["rollout/lag_max"] for step in steps_of(summary)) <= 1


def test_every_token_of_a_synchronous_run_has_lag_zero(project):
    summary = Trainer(project(name="lag")).train()
    lags = [step["rollout/lag_max"] for step in steps_of(summary)]
    assert lags == [0.0, 0.0]
    for step in steps_of(summary):
        assert step["rollout/tokens"] / step["rollout/tokens_per_s"] == pytest.approx(step["time/rollout_s"])


def test_an_asynchronous_run_keeps_to_its_bound(project):
    rollout = {"max_head_offpolicyness": 2, "max_concurrent_rollouts": 8}
    summary = Trainer(project(name="async", rollout=rollout, trainer={"steps": 6})).train()
    lags = [step["rollout/lag_max"] for step in steps_of(summary)]
    assert summary.steps == 6
    assert 0 < max(lags) <= 2
    for before, step in itertools.pairwise(steps_of(summary)):  # sampling went on while the step before was trained
        assert step["rollout/tokens"] / step["rollout/tokens_per_s"] >= before["time/train_s"] + step["time/rollout_s"]


def test_the_same_seed_gives_the_same_weights(project):
    first = Trainer(project(name="first", seed=7, rollout={"max_concurrent_rollouts": 1})).train()
    second = Trainer(project(name="second", seed=7, rollout={"max_concurrent_rollouts": 1})).train()
    for name, tensor in weights(first, 2).items():
        assert (tensor == weights(second, 2)[name]).all(), name


def test_training_takes_the_workflow_and_the_options_that_python_passes(project):
    calls = []

    class Counting:
        def __init__(self, every: int):
            self.every = every

        async def run(self, data, *, base_url, api_key, http_client):
            calls.append(data["id"])
            body = {"model": "default", "messages": data["messages"], "max_tokens": 2}
            headers = {"authorization": f"Bearer {api_key}"}
            reply = await http_client.post(f"{base_url}/v1/chat/completions", json=body, headers=headers)
            return float(len(reply.json()["id"]) + len(calls) % self.every)

    config = project(name="object", trainer={"steps": 1})
    summary = Trainer(config).train(workflow=Counting, workflow_kwargs={"every": 2})
    assert len(calls) == summary.outcomes["scored"] == 8


def test_a_config_without_any_python_trains_on_what_its_scorer_says(project):
    config = project(name="plain", workflow="multi_turn", trainer={"steps": 1})
    summary = Trainer(config, overrides=["workflow_kwargs.max_turns=2", "sampling.max_tokens=4"]).train()
    assert summary.outcomes == {"scored": 8}
    assert summary.llm_calls == 16  # a random policy is never right, and is asked again once


def test_a_token_level_workflow_is_trained_on_exactly_what_it_sampled(project):
    class Letters(RolloutWorkflow):
        async def arun_episode(self, engine, data):
            ids = engine.tokenizer.apply_chat_template(data["messages"], add_generation_prompt=True)
            settings = GenerationHyperparameters(max_new_tokens=6)
            response = await engine.agenerate(ModelRequest(input_ids=ids, gconfig=settings))
            return sum(map(str.isalpha, engine.tokenizer.decode(response.output_tokens))) / 6

    summary = Trainer(project(name="tokens", trainer={"steps": 1})).train(workflow=Letters)
    assert summary.outcomes == {"scored": 8}
    assert summary.exact_tokens == summary.trained_tokens > 0
    assert steps_of(summary)[0]["loss/logprob_gap_max"] < 1e-4


def test_an_agent_that_asks_for_another_temperature_gets_the_policys_and_it_is_told(project):
    summary = Trainer(project("Cold", name="cold", trainer={"steps": 1})).train()
    log = (Path(summary.directory) / "logs" / "run_0.log").read_text(encoding="utf-8")
    assert "8 LLM calls asked for another temperature" in log


@pytest.mark.parametrize(("agent", "reason"), [("Silent", "no_llm_call"), ("NotFinite", "not_finite")])
def test_a_run_in_which_most_records_fail_stops_with_the_reason(project, agent, reason):
    with pytest.raises(RunError, match=reason):
        Trainer(project(agent, name="failing", rollout={"failure_window": 8})).train()


def test_steps_without_signal_stop_the_run_with_advice(project):
    config = project("Constant", name="flat", trainer={"steps": 9, "max_steps_without_signal": 2})
    with pytest.raises(NothingLearnedError, match=r"2 steps .* every reward in 2 groups is 0\.5"):
        Trainer(config).train()


def test_a_missing_scorer_stops_the_run_and_recommends_no_judge(project):
    absent = {"block": ["agentrl-judge"]}
    with pytest.raises(RunError, match=r"names no scorer\. Set data\.default_scorer: exact_match \(or numeric, for"):
        Trainer(project("Unscored", name="judged", data={"default_scorer": None}, plugins=absent)).train()


def test_a_default_scorer_that_is_not_there_is_told_before_there_is_a_run(project):
    with pytest.raises(ConfigError, match=r"data\.default_scorer: no scorer named 'exact_mach'"):
        Trainer(project("Unscored", name="misspelt", data={"default_scorer": "exact_mach"})).train()
    assert not Path("runs/misspelt").exists()


def test_a_port_that_is_in_use_is_told_before_there_is_a_run(project):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"gateway\.port: port {port} on 127\.0\.0\.1 is in use"):
            Trainer(project(name="taken", gateway={"port": port})).train()
    assert not Path("runs/taken").exists()


def test_a_default_scorer_decides_when_the_workflow_returns_none(project):
    config = project("Unscored", name="scored", trainer={"steps": 1, "max_steps_without_signal": 1})
    with pytest.raises(
        RunError, match=r"is 0 \(from the scorer 'exact_match'\)"
    ):  # random letters never match: all rewards are 0
        Trainer(config).train()


def test_a_hanging_agent_is_timed_out_and_its_siblings_go_on(project):
    config = project("Stuck", name="stuck", rollout={"timeout_s": 0.2, "failure_window": 4, "retries": 0})
    with pytest.raises(RunError, match="timed_out"):
        Trainer(config).train()


@pytest.mark.parametrize(
    ("section", "error"),
    [
        ({"model": {"path": "nowhere"}}, "model.path: there is no folder .*nowhere"),
        ({"loss": {"use": "grop"}}, "did you mean grpo"),
        ({"engine": {"use": "embeded"}}, "did you mean embedded"),
        ({"loss": {"use": "grpo", "clipp": 0.1}}, "did you mean clip"),
        ({"rollout": {"dynamic_sampling": True}, "filters": []}, "rollout.dynamic_sampling: .*`filters` drop"),
        ({"rollout": {"agent": {"python": "elsewhere"}}}, "rollout.agent.python: only for rollout.agent.mode subproc"),
        (
            {"rollout": {"agent": {"mode": "subproc", "python": "./elsewhere"}}},
            "rollout.agent.python: there is no interpreter .*/elsewhere",
        ),
        ({"rollout": {"agent": {"mode": "subproc"}}, "workflow": "letters.py:Agnt"}, "did you mean Agent"),
        ({"sampling": {"temperature": 0}}, "sampling.temperature"),
        ({"data": {"train": "missing.jsonl"}}, "missing.jsonl"),
        ({"workflow": "letters.py:Agnt"}, "did you mean Agent"),
        ({"workflow": None}, "the agent is missing"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(project, section, error):
    with pytest.raises(UsageError, match=error):
        Trainer(project(name="refused", **section)).train()
    assert not (Path("runs/refused/agentrl.db")).exists()


def test_a_run_with_agents_in_processes_trains_as_any_other(project):
    before = set(psutil.Process().children(recursive=True))
    summary = Trainer(project(name="apart", rollout={"agent": {"mode": "subproc", "subproc_max_workers": 2}})).train()
    assert summary.outcomes == {"scored": 2 * 2 * 4}
    assert set(psutil.Process().children(recursive=True)) <= before


def test_a_task_without_an_answer_is_refused_when_its_scorer_needs_one(project):
    Path("tasks.jsonl").write_text('{"id": "t1", "query": "?", "scorer": "exact_match"}\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"tasks.jsonl:1: task 't1': scorer 'exact_match' needs the task's `answer`"):
        Trainer(project(name="refused")).train()


def test_a_port_in_use_is_a_clear_error(project):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises((RunError, UsageError), match=f"{port}"):
            Trainer(project(name="port", gateway={"port": port})).train()


@pytest.mark.slow
def test_faults_of_the_agent_are_counted_and_cost_no_group(project):
    rollout = {"timeout_s": 3.0, "tasks_per_step": 4}
    summary = Trainer(project("Faulty", name="faulty", rollout=rollout, trainer={"steps": 4})).train()
    assert summary.status == "finished"
    by_outcome = {}
    for record in records(summary):
        by_outcome[record.outcome] = by_outcome.get(record.outcome, 0) + 1
    assert by_outcome[Outcome.SCORED] >= 4 * 4 * 4 - 10
    assert by_outcome[Outcome.FAILED] > 0
    assert sum(summary.outcomes.values()) == sum(by_outcome.values())


def test_two_processes_cannot_train_one_run(project):
    from agentrl_core.run import resume
    from agentrl_core.run.directory import RunDirectory

    summary = Trainer(project(name="locked")).train()
    directory = RunDirectory.open(Path(summary.directory))
    with directory.locked(), pytest.raises(UsageError, match="being trained by process"):
        resume(directory.path, ["trainer.steps=4"])


def test_a_finished_run_says_so_and_takes_more_steps_if_told(project):
    from agentrl_core.run import resume

    folder = Path(Trainer(project(name="more")).train().directory)
    with pytest.raises(UsageError, match=r"finished: 2 of 2 steps; .* trainer.steps=4"):
        resume(folder)
    assert status_of(folder) == "finished"  # still: a refused resume changes nothing
    assert resume(folder, ["trainer.steps=3"]).steps == 3
    assert json.loads((folder / "config.json").read_text())["config"]["trainer"]["steps"] == 3  # kept for the next


def test_a_run_killed_in_its_last_evaluation_is_finished_by_a_resume(project):
    from agentrl_core.run import resume

    config = project(name="last", data={"eval": "tasks.jsonl"}, eval={"tasks": 2, "tasks_during": 1})
    folder = Path(Trainer(config).train().directory)
    store = SQLiteStore(path=folder / "agentrl.db")
    asyncio.run(store.update_run("last", status="running"))  # as a kill leaves it: the last checkpoint came before
    asyncio.run(store.close())
    summary = resume(folder)
    assert (summary.status, summary.steps, [report.step for report in summary.evals]) == ("finished", 2, [2])
    assert status_of(folder) == "finished"


def test_a_store_without_its_log_knows_every_step_of_a_checkpoint(project, tmp_path, monkeypatch):
    """As far as it is on the disk: a power cut may take the log."""
    save, found = Learner.save, []

    def looking(learner, folder, step, version, *, writer):
        copy = shutil.copy(folder.parents[1] / "agentrl.db", tmp_path / f"{step}.db")
        with contextlib.closing(sqlite3.connect(copy)) as db:
            found.append((step, *db.execute("SELECT max(step) FROM steps").fetchone()))
        save(learner, folder, step, version, writer=writer)

    monkeypatch.setattr(Learner, "save", looking)
    Trainer(project(name="flushed")).train()
    assert found == [(1, 1), (2, 2)]


class Notes:
    """A tracker of a user's own, which knows nothing of modes."""

    def __init__(self, *, run_dir: Path):
        (run_dir / "notes").mkdir(exist_ok=True)
        (run_dir / "notes" / "notes.txt").write_text("seen")

    def __getattr__(self, event):
        return lambda *_: None


def test_only_its_owner_reads_what_a_run_leaves_whatever_the_umask(project):
    from agentrl_core.run import resume

    def shared():
        entries = [folder, *folder.rglob("*")]
        assert len(entries) > 15
        return {str(path): oct(mode) for path in entries if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077}

    before = os.umask(0)
    try:
        own = {"use": f"{__file__}:Notes"}
        config = project(name="mine", trainer={"steps": 1}, trackers=["jsonl", "curve", own])
        folder = Path(Trainer(config).train().directory)
        assert shared() == {}
        for path in (folder, *folder.rglob("*")):  # as a run of an earlier version left them
            path.chmod(path.stat().st_mode | 0o077)
        resume(folder, ["trainer.steps=2"])
        assert shared() == {}
    finally:
        os.umask(before)


def test_a_moved_run_is_refused_and_so_is_one_without_its_store(project):
    from agentrl_core.run import resume

    folder = Path(Trainer(project(name="home")).train().directory)
    moved = folder.rename(folder.with_name("away"))
    with pytest.raises(UsageError, match="a run keeps its name"):
        resume(moved, ["trainer.steps=3"])
    moved.rename(folder)
    for path in folder.glob("agentrl.db*"):
        path.unlink()
    with pytest.raises(UsageError, match="does not contain the run 'home'"):
        resume(folder, ["trainer.steps=3"])


def test_training_works_inside_a_running_event_loop(project):
    async def cell():
        return Trainer(project(name="notebook", trainer={"steps": 1})).train()

    assert asyncio.run(cell()).steps == 1


def test_an_unforeseen_error_names_the_log_that_has_its_traceback(project, monkeypatch):
    def broken(*_, **__):
        return 1 / 0

    monkeypatch.setattr("agentrl_core.training.learner.Learner.step", broken)
    with pytest.raises(RunError, match=r"ZeroDivisionError: division by zero .*run_0.log"):
        Trainer(project(name="unforeseen")).train()
    assert "return 1 / 0" in Path("runs/unforeseen/logs/run_0.log").read_text(encoding="utf-8")


def test_a_loss_that_raises_is_named_with_its_line(project):
    Path("broken.py").write_text(
        "class Loss:\n    needs = frozenset()\n    def loss(self, batch):\n        return 1 / 0\n", encoding="utf-8"
    )
    with pytest.raises(TrainingError, match=r"loss: Loss raised ZeroDivisionError: division by zero \(.*broken.py:4\)"):
        Trainer(project(name="broken", loss={"use": "broken.py:Loss"})).train()
    assert "in loss\n    return 1 / 0" in Path("runs/broken/logs/run_0.log").read_text(encoding="utf-8")


def test_a_tracker_that_fails_is_named(project):
    Path("tracker.py").write_text(
        "class Bad:\n    def __getattr__(self, name):\n        return lambda *_: 1 / 0 if name != 'close' else None\n",
        encoding="utf-8",
    )
    with pytest.raises(RunError, match="tracker Bad failed in"):
        Trainer(project(name="tracker", trackers=["tracker.py:Bad"])).train()


def test_an_evaluation_in_which_every_episode_fails_stops_the_run(project):
    Path("evaluated.py").write_text(
        "from letters import Agent as Base\n\n\nclass Agent(Base):\n"
        "    async def run(self, data, *, base_url, api_key, http_client, is_eval):\n"
        "        if is_eval:\n            raise OSError('no simulator')\n"
        "        return await super().run(data, base_url=base_url, api_key=api_key, http_client=http_client)\n",
        encoding="utf-8",
    )
    config = project(name="blind", workflow="evaluated.py:Agent", data={"eval": "tasks.jsonl"})
    with pytest.raises(RunError, match="none of the 5 evaluation episodes on 'eval' ended with a reward"):
        Trainer(config).train()


def test_a_component_of_the_wrong_shape_is_refused_before_anything_starts(project):
    Path("shapes.py").write_text("def advantage(rewards):\n    return rewards\n", encoding="utf-8")
    with pytest.raises(UsageError, match="no method `advantages`"):
        Trainer(project(name="shape", advantage={"use": "shapes.py:advantage"})).train()


def test_a_model_without_a_chat_template_is_refused_before_anything_starts(project, policy_dir, tmp_path):
    import shutil

    bare = shutil.copytree(policy_dir, tmp_path / "bare")
    settings = json.loads((bare / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (bare / "tokenizer_config.json").write_text(json.dumps(settings))
    (bare / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(UsageError, match=r"model.path: .*template"):
        Trainer(project(name="bare", model={"path": str(bare)})).train()
    assert not Path("runs/bare").exists()


def test_a_template_in_a_format_of_a_package_that_is_blocked_needs_a_named_parser(project, policy_dir, tmp_path):
    import shutil

    model = shutil.copytree(policy_dir, tmp_path / "other")
    with (model / "chat_template.jinja").open("a", encoding="utf-8") as file:
        file.write("{# [TOOL_CALLS] #}")
    config = {"name": "other", "model": {"path": str(model)}, "plugins": {"block": ["agentrl-parsers"]}}
    with pytest.raises(UsageError, match=r"model.path: .*'\[TOOL_CALLS\]' shows .* is blocked by plugins.block"):
        Trainer(project(**config)).train()
    with pytest.raises(UsageError, match="no tool parser named 'hermess'") as caught:
        Trainer(project(**config, gateway={"tool_parser": "hermess"})).train()
    assert "TOOL_CALLS" not in str(caught.value)


def test_a_refused_request_is_told_in_the_records_detail(project):
    Path("long.py").write_text(
        "from letters import ask\n\n\nclass Agent:\n"
        "    async def run(self, data, *, base_url, api_key, http_client):\n"
        "        data['messages'] = [{'role': 'user', 'content': 'x' * 5000}]\n"
        "        await ask(data, base_url, api_key, http_client)\n",
        encoding="utf-8",
    )
    config = project(name="long", workflow="long.py:Agent", rollout={"failure_window": 4})
    with pytest.raises(RunError, match="context_length_exceeded"):
        Trainer(config).train()


def test_an_agent_that_blocks_the_event_loop_is_named_with_its_line(project):
    Path("blocking.py").write_text(
        "import time\nfrom letters import Agent as Base\n\n\nclass Agent(Base):\n"
        "    async def run(self, data, *, base_url, api_key, http_client):\n"
        "        time.sleep(2.5)\n"
        "        return await super().run(data, base_url=base_url, api_key=api_key, http_client=http_client)\n",
        encoding="utf-8",
    )
    config = project(
        name="blocking",
        workflow="blocking.py:Agent",
        trainer={"steps": 1},
        rollout={"group_size": 2, "tasks_per_step": 1},
    )
    summary = Trainer(config).train()
    log = (Path(summary.directory) / "logs" / "run_0.log").read_text(encoding="utf-8")
    assert re.search(r"blocking.py.*7", log), log


BROKEN = """
import torch
from agentrl_core.losses.grpo import GRPO
import attrs


@attrs.frozen
class Loss(GRPO):
    def loss(self, batch):
        output = GRPO.loss(self, batch)
        return attrs.evolve(output, per_token=output.per_token.masked_fill(batch.record == 1, torch.nan))
"""


def test_records_that_are_not_finite_are_left_out_and_told_until_it_is_too_much(project, capsys):
    Path("broken.py").write_text(BROKEN, encoding="utf-8")
    trainer = {"non_finite": "skip", "max_steps_not_finite": 2, "steps": 4}
    config = project(name="skips", loss={"use": "broken.py:Loss"}, trainer=trainer, trackers=["jsonl", "console"])
    with pytest.raises(RunError, match=r"2 steps in a row had NaN or infinite numbers, the last one in: \w+: loss nan"):
        Trainer(config).train()
    lines = Path("runs/skips/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [event for event in map(json.loads, lines) if event["event"] == "step_finished"]
    assert [step["metrics"]["batch/records_not_finite"] for step in steps] == [1, 1]
    (record,) = steps[0]["left_out"]
    assert steps[0]["left_out"] == {record: "loss nan"}
    assert f"left out of the loss because of NaN or infinite numbers: {record}: loss nan" in capsys.readouterr().out


def test_what_is_not_finite_stops_a_run_that_was_not_told_to_skip_it(project):
    Path("broken.py").write_text(BROKEN, encoding="utf-8")
    with pytest.raises(RunError, match=r"not be finite and was refused.* Records: \w+ \(loss nan\)\. "):
        Trainer(project(name="stops", loss={"use": "broken.py:Loss"})).train()


@pytest.mark.parametrize("ahead", [0, 1])
def test_an_engine_lends_its_memory_to_each_step_that_is_trained_without_sampling(project, monkeypatch, ahead):
    told = []

    def telling(kind, name, method, size):
        def tell(self, *arguments, **options):
            told.append((name, size(self)))
            return method(self, *arguments, **options)

        monkeypatch.setattr(kind, name, tell)

    telling(KeyValueCache, "release", KeyValueCache.release, lambda cache: cache.rows.numel() > 0)
    telling(KeyValueCache, "reserve", KeyValueCache.reserve, lambda cache: cache.rows.numel() > 0)
    telling(KeyValueCache, "allocate", KeyValueCache.allocate, lambda _: True)
    telling(Learner, "step", Learner.step, lambda _: True)
    telling(Learner, "release", Learner.release, lambda _: True)
    trainer = {"steps": 2, "lr": 1e-3, "save_steps": 1, "warmup_steps": 0, "offload": "optimizer"}
    summary = Trainer(project(trainer=trainer, rollout={"max_head_offpolicyness": ahead})).train()
    assert summary.steps == 2
    assert all(held for _, held in told), "sampled without memory"
    order = [name for name, _ in told if name != "reserve"]
    turn = ["release", "step", "release", "allocate"]
    assert order == ["allocate", "release", *(turn * 2 if ahead == 0 else ["step", "release"] * 2)]
