"""Whole runs whose answers are judged: what a person sees of verdicts, outages and wrong configs."""

import asyncio
import json
from pathlib import Path

import pytest

from agentrl_core import Trainer
from agentrl_core.cli.episode_text import episode_lines
from agentrl_core.config import load
from agentrl_core.errors import ConfigError, RunError
from agentrl_core.run.checks import check_config
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Outcome
from agentrl_judge import hooks
from agentrl_judge.judge import Judge
from agentrl_judge.testing import JudgeServer, blocks, failing, verdict
from agentrl_testing import isolated_plugins
from agentrl_testing.policy import toy_policy

SCORER = "agentrl_judge.judge:Judge"
AGENT = """
from agentrl_core import Answer


async def ask(data, *, base_url, api_key, http_client):
    body = {"model": "default", "messages": data["messages"], "max_tokens": 6}
    reply = await http_client.post(
        f"{base_url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {api_key}"}
    )
    reply.raise_for_status()
    return Answer("I say " + (reply.json()["choices"][0]["message"].get("content") or ""))
"""


def by_length(body):
    """Have a preference, so that there is something to learn."""
    return verdict("correct" if len(blocks(body)["ANSWER"]) % 2 else "incorrect", "counted")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with an agent, tasks and a file of judges; returns the config."""
    monkeypatch.chdir(tmp_path)

    def make(server, *, model="judge-1"):
        Path("agent.py").write_text(AGENT, encoding="utf-8")
        rows = [{"id": f"t{i}", "query": f"Say {i}.", "answer": str(i), "scorer": SCORER} for i in range(4)]
        Path("tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        scorer = {"models": [{"base_url": server.url, "model": model, "api_key": "sk-literal"}], "retry_delay": 0}
        Path("agent_config.yml").write_text(json.dumps({"scorer_agent": scorer}), encoding="utf-8")
        return {
            "name": "judged",
            "data": {"train": "tasks.jsonl", "allow_code": True},
            "workflow": "agent.py:ask",
            "rollout": {"group_size": 4, "tasks_per_step": 2, "timeout_s": 20.0},
            "trainer": {"steps": 1, "lr": 1e-3, "warmup_steps": 0},
            "trackers": [],
        }

    return make


def episodes(folder):
    async def read():
        store = SQLiteStore.read(Path(folder) / "agentrl.db")
        found = [await store.episode(record.id) for record in await store.records("judged")]
        await store.close()
        return found

    return asyncio.run(read())


def test_both_names_are_the_judge():
    with isolated_plugins(hooks) as registry:
        assert {registry.load("scorers", name) for name in ("judge", "agentcpm")} == {Judge}


def test_a_model_that_its_server_does_not_know_stops_a_run_before_it_starts(project, standing, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    config = project(standing(JudgeServer()), model="judge-2") | {"model": {"use": "tiny"}}
    with pytest.raises(ConfigError, match=r"has no model judge-2 \(did you mean judge-1\?\)"):
        Trainer(config).train()
    assert not Path("runs").exists()


def test_a_run_whose_gateway_is_its_own_judge_does_not_start(project):
    server = JudgeServer()
    config = project(server) | {"model": {"use": "tiny"}, "gateway": {"port": 8123}}
    text = Path("agent_config.yml").read_text().replace(server.url, "http://localhost:8123/v1")
    Path("agent_config.yml").write_text(text)
    with pytest.raises(ConfigError, match="is this run's own gateway"):
        Trainer(config).train()


def test_a_judge_that_is_a_part_of_another_scorer_is_checked_too(project, standing):
    server = standing(JudgeServer())
    config = project(server) | {"model": {"use": "tiny"}}
    part = {"use": SCORER, "weight": 0.5, "models": [server.model | {"model": "judge-2"}]}
    config["scorers"] = {"mixed": {"use": "weighted", "parts": {"exact_match": 0.5, "judge": part}}}
    config["data"]["default_scorer"] = "mixed"
    with pytest.raises(ConfigError, match="has no model judge-2"):
        Trainer(config).train()


def test_what_is_wrong_with_a_judge_is_told_with_its_line(project):
    project(JudgeServer())
    Path("conf").mkdir()
    text = f"""\
model: {{use: tiny}}
data: {{train: ../tasks.jsonl}}
workflow: ../agent.py:ask
scorers:
  judge:
    use: {SCORER}
    config: ../agent_config.yml
    timeout: 5
"""
    Path("conf/config.yaml").write_text(text)
    problems, _ = check_config(load(Path("conf/config.yaml")))
    assert problems[0].startswith("conf/config.yaml:8: scorers.judge.timeout: unknown option")
    assert "did you mean timeout_s?" in problems[0]
    Path("conf/config.yaml").write_text(text.replace("timeout:", "timeout_s:"))
    Path("agent_config.yml").write_text("scorer_agent:\n  models:\n    - {mode: x}\n")
    problems, _ = check_config(load(Path("conf/config.yaml")))
    assert problems[0].endswith("agent_config.yml:3: unknown key mode (did you mean model?)")


def test_a_task_with_an_empty_answer_is_refused_before_anything_starts(project):
    config = project(JudgeServer()) | {"model": {"use": "tiny"}}
    Path("tasks.jsonl").write_text(Path("tasks.jsonl").read_text().replace('"answer": "2"', '"answer": " "'))
    with pytest.raises(ConfigError, match=r"task 't2'.*the task's `answer` is empty"):
        Trainer(config).train()


def test_a_default_scorer_that_nobody_set_up_is_no_obstacle(project):
    config = project(JudgeServer()) | {"model": {"use": "tiny"}}
    config["data"]["default_scorer"] = SCORER
    Path("config.yaml").write_text(json.dumps(config))
    Path("agent_config.yml").unlink()
    rows = Path("tasks.jsonl").read_text()
    problems, _ = check_config(load(Path("config.yaml")))
    assert "no model is configured" in problems[0]
    Path("tasks.jsonl").write_text(rows.replace(f', "scorer": "{SCORER}"', ""))
    problems, _ = check_config(load(Path("config.yaml")))
    assert "no model is configured" in problems[0]
    del config["data"]["default_scorer"]
    Path("config.yaml").write_text(json.dumps(config))
    problems, notes = check_config(load(Path("config.yaml")))
    assert problems == []
    assert "cannot be used" in notes[0]
    assert "the workflow must return their rewards" in notes[0]


@pytest.fixture(scope="session")
def policy_dir(tmp_path_factory):
    return toy_policy(tmp_path_factory.mktemp("policy"), architecture="qwen3", seed=0)


@pytest.mark.slow
def test_a_run_is_trained_by_a_judge_whose_words_stand_in_the_trace(project, standing, policy_dir):
    config = project(standing(JudgeServer(by_length))) | {"model": {"path": str(policy_dir)}}
    summary = Trainer(config).train()
    assert summary.status == "finished"
    assert b"sk-literal" not in b"".join(path.read_bytes() for path in Path("runs").rglob("*") if path.is_file())
    found = [episode for episode in episodes(summary.directory) if episode.record.outcome is Outcome.SCORED]
    assert len(found) >= 8
    for episode in found:
        told = episode.record.score_details["judge"]
        assert told["verdict"] == {"value": episode.record.reward, "reasoning": "counted", "model": "judge-1"}
        assert "]\nI say " in told["messages"][1]["content"]
    shown = "\n".join(line.text for line in episode_lines(found[0], None))
    assert "  scoring   judge:" in shown


def calls_of(records):
    return [call for record in records for call in record.score_details["judge"]["calls"]]


@pytest.mark.slow
def test_an_outage_in_the_middle_of_a_run_is_no_score_and_never_zero(project, standing, policy_dir):
    config = project(standing(JudgeServer(failing(503)))) | {"model": {"path": str(policy_dir)}}
    Path("judging.py").write_text("from agentrl_judge.judge import Judge\njudge = Judge(timeout_s=0.5)\n")
    Path("tasks.jsonl").write_text(Path("tasks.jsonl").read_text().replace(SCORER, "judging.py:judge"))
    with pytest.raises(RunError, match="judge_down"):
        Trainer(config).train()
    records = [episode.record for episode in episodes(next(Path("runs").iterdir()))]
    rejected = [record for record in records if record.outcome is Outcome.REJECTED]
    assert rejected
    assert {record.outcome for record in records} <= {Outcome.REJECTED, Outcome.CANCELLED}
    for record in rejected:
        assert (record.reward, record.reason) == (None, "no_score")
        assert record.detail.startswith("judge_down: ")
    assert any(call["error"].startswith("status 503") for call in calls_of(rejected))
