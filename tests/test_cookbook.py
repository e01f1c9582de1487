"""Every recipe, run for some steps as a user runs it."""

import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl_core.testing.quest import Quest, held_out, situations

ROOT = Path(__file__).parent.parent
COOKBOOK = ROOT / "cookbook"


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_no_held_out_situation_is_shown_in_training_or_in_demonstrations():
    shown = {row["messages"][0]["content"] for row in rows(COOKBOOK / "quickstart/demos.jsonl")}
    train = {(row["sideways"], row["up"]) for row in rows(COOKBOOK / "quickstart/train.jsonl")}
    heldout = rows(COOKBOOK / "quickstart/heldout.jsonl")
    prompts_of_training = {row["messages"][0]["content"] for row in rows(COOKBOOK / "quickstart/train.jsonl")}
    assert shown <= prompts_of_training
    for row in heldout:
        prompt, offset = row["messages"][0]["content"], (row["sideways"], row["up"])
        assert prompt not in prompts_of_training or offset not in train
    assert sum(map(held_out, situations())) == 72


@pytest.mark.parametrize("page", sorted(COOKBOOK.rglob("*.md")), ids=lambda page: str(page.relative_to(COOKBOOK)))
def test_every_file_that_a_page_links_exists(page):
    links = re.findall(r"\]\((?!http)([^)]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_committed_data_is_what_its_script_writes(tmp_path):
    target = tmp_path / "cookbook"
    for recipe in ("quickstart", "langchain", "camel", "openhands", "smolagents"):
        (target / recipe).mkdir(parents=True)
    script = target / "quickstart/make_data.py"
    script.write_text((COOKBOOK / "quickstart/make_data.py").read_text(encoding="utf-8"), encoding="utf-8")
    subprocess.run([sys.executable, str(script)], check=True)
    for path in target.rglob("*.jsonl"):
        assert path.read_bytes() == (COOKBOOK / path.relative_to(target)).read_bytes(), path.name


def test_a_quest_can_be_won_in_two_calls_and_lost_in_three():
    quest = Quest(-2, 1)
    assert quest.clue() == "It is 2 left."
    assert quest.move('{"dir": "left", "steps": 2}') == "It is 1 up."
    assert quest.move('{"dir": "up", "steps": 1}') == "Found!"
    assert (quest.reward, quest.finished) == (1.0, True)
    lost = Quest(-2, 1)
    assert [lost.move(text) for text in ("nonsense", '{"dir": "up", "steps": 1}')] == ["error", "It is 2 left."]
    assert not lost.finished
    lost.move('{"dir": "right", "steps": 9}')
    assert (lost.offset, lost.reward, lost.finished) == ([-4, 1], 0.0, True)


def command_of(recipe: str, tmp_path: Path, *overrides: str) -> list[str]:
    command = [sys.executable, "-m", "agentrl_core", "run", str(COOKBOOK / recipe / "config.yaml")]
    return [*command, "--name", "smoke", f"output_dir={tmp_path}", *overrides]


def run_recipe(recipe: str, tmp_path: Path, *overrides: str) -> list[dict]:
    """Run a recipe by the command line; its events."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = command_of(recipe, tmp_path, *overrides)
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "smoke" / "reward.png").stat().st_size > 10_000
    return rows(tmp_path / "smoke" / "metrics.jsonl")


def step_rewards(events: list[dict]) -> list[float]:
    return [event["metrics"]["reward/mean"] for event in events if event["event"] == "step_finished"]


@pytest.mark.slow
def test_the_quickstart_learns(tmp_path):
    events = run_recipe("quickstart", tmp_path, "trainer.steps=14", "eval.tasks=64", "eval.every=0")
    rewards = step_rewards(events)
    assert len(rewards) == 14
    assert sum(rewards[:2]) / 2 < 0.5
    assert sum(rewards[-3:]) / 3 > 0.7
    gaps = [event["metrics"].get("loss/logprob_gap_max", 0.0) for event in events if event["event"] == "step_finished"]
    assert max(gaps) < 1e-4


@pytest.mark.slow
def test_the_quickstart_learns_although_a_fifth_of_its_episodes_fail(tmp_path, monkeypatch, faulty_agent):
    (tmp_path / "faulty.py").write_text(
        "from workflow import QuestAgent\n" + faulty_agent("QuestAgent"), encoding="utf-8"
    )
    monkeypatch.setenv("PYTHONPATH", str(COOKBOOK / "quickstart"))
    overrides = (f"workflow={tmp_path / 'faulty.py'}:Faulty", "rollout.timeout_s=4", "trainer.steps=14")
    events = run_recipe("quickstart", tmp_path, *overrides, "eval.tasks=64", "eval.every=0")
    rewards = step_rewards(events)
    assert sum(rewards[-3:]) / 3 > 0.7
    outcomes = events[-1]["outcomes"]
    total = sum(outcomes.values())
    shares = {
        "failed": sum(count for name, count in outcomes.items() if name.startswith("failed")) / total,
        "timed_out": sum(count for name, count in outcomes.items() if name.startswith("timed_out")) / total,
        "not_finite": sum(count for name, count in outcomes.items() if "not_finite" in name) / total,
    }
    assert shares == pytest.approx({"failed": 0.10, "timed_out": 0.05, "not_finite": 0.05}, abs=0.03)


@pytest.mark.slow
def test_the_langchain_agent_learns_unmodified(tmp_path):
    pytest.importorskip("langchain_openai")
    events = run_recipe("langchain", tmp_path, "trainer.steps=10", "eval.tasks=32", "eval.every=0")
    rewards = step_rewards(events)
    assert len(rewards) == 10
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "sdk"), [("openai-agents", "agents"), ("anthropic", "anthropic")])
def test_agents_of_the_providers_sdks_learn_unmodified(tmp_path, recipe, sdk):
    pytest.importorskip(sdk)
    rewards = step_rewards(run_recipe(recipe, tmp_path, "trainer.steps=8", "eval.tasks=16", "eval.every=0"))
    assert len(rewards) == 8
    assert sum(rewards[-2:]) > sum(rewards[:2]) + 0.3


@pytest.mark.slow
def test_a_sampler_in_agentrls_style_learns(tmp_path):
    rewards = step_rewards(run_recipe("sampler", tmp_path, "trainer.steps=8", "eval.tasks=16", "eval.every=0"))
    assert len(rewards) == 8
    assert sum(rewards[-2:]) > sum(rewards[:2]) + 0.3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "framework", "steps"), [("pydantic-ai", "pydantic_ai", 10), ("smolagents", "smolagents", 15)]
)
def test_agents_of_further_frameworks_learn_unmodified(tmp_path, recipe, framework, steps):
    pytest.importorskip(framework)
    events = run_recipe(recipe, tmp_path, f"trainer.steps={steps}", "eval.tasks=32", "eval.every=0")
    rewards = step_rewards(events)
    assert len(rewards) == steps
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1


@pytest.mark.slow
def test_an_agent_in_a_process_of_its_own_learns(tmp_path, monkeypatch):
    pytest.importorskip("openai")
    monkeypatch.setenv("AGENTRL_ADMIN_KEY", "a-key-for-this-test-alone")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    script = [sys.executable, str(COOKBOOK / "online/agent.py"), f"http://127.0.0.1:{port}"]
    with subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as agent:
        try:
            overrides = (f"gateway.port={port}", "trainer.steps=6", "eval.tasks=16")
            events = run_recipe("online", tmp_path, *overrides)
            said, _ = agent.communicate(timeout=30)
        finally:
            agent.kill()
    assert (said, agent.returncode) == ("the gateway is gone: the run has ended\n", 0)
    rewards = step_rewards(events)
    assert len(rewards) == 6
    assert sum(rewards[-2:]) > sum(rewards[:2]) + 0.2
    records = 16 + 6 * 16 * 8 + 16
    assert events[-1]["outcomes"] == {"scored": records}
    assert events[-1]["exact_tokens"] == events[-1]["trained_tokens"] > 0
    with sqlite3.connect(tmp_path / "smoke/agentrl.db") as database:
        (opened,) = database.execute("SELECT count(*) FROM sessions WHERE task_id = 'quest'").fetchone()
    database.close()
    assert opened == records
