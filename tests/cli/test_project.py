"""agentrl init: a demo that runs, and a config around an agent that there is."""

import json
from pathlib import Path

import pytest

from agentrl_core import config
from agentrl_core.cli.project import write_config, write_demo
from agentrl_core.errors import UsageError
from agentrl_core.run import Trainer
from agentrl_core.run.checks import check_config
from agentrl_core.trackers.jsonl import read_events


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_demo_is_a_sound_config(folder):
    written = write_demo(Path("demo"))
    assert [path.name for path in written] == ["config.yaml", "agent.py", "tasks.jsonl", "demos.jsonl"]
    problems, _ = check_config(config.load(Path("demo/config.yaml")))
    assert problems == []


def test_three_in_ten_demonstrations_are_right(folder):
    write_demo(folder)
    rows = [json.loads(line) for line in (folder / "demos.jsonl").read_text().splitlines()]
    tasks = [json.loads(line) for line in (folder / "tasks.jsonl").read_text().splitlines()]
    answers = {task["messages"][0]["content"]: task["answer"] for task in tasks}
    right = [row["messages"][1]["content"] == answers[row["messages"][0]["content"]] for row in rows]
    assert len(tasks) == 16
    assert 0.25 < sum(right) / len(right) < 0.35


@pytest.mark.slow
def test_the_demo_learns(folder):
    write_demo(Path("demo"))
    overrides = ["trainer.steps=15", "trackers=[jsonl]"]
    summary = Trainer("demo/config.yaml", overrides=overrides, name="demo").train()
    events = read_events(Path(summary.directory) / "metrics.jsonl")
    rewards = [event["metrics"]["reward/mean"] for event in events if event["event"] == "step_finished"]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.1


def test_an_agent_of_ones_own_gets_a_config_that_names_it(folder):
    (folder / "code").mkdir()
    (folder / "code" / "mine.py").write_text("def run(data):\n    return 1.0\n", encoding="utf-8")
    written = write_config(Path("training"), "code/mine.py:run")
    assert [str(path) for path in written] == ["training/config.yaml", "training/tasks.jsonl"]
    loaded = config.load(Path("training/config.yaml"), ["model={use: tiny}"])
    assert loaded.run.workflow.use == "../code/mine.py:run"
    problems, _ = check_config(loaded)
    assert problems == []


def test_tasks_that_are_there_stay(folder):
    (folder / "tasks.jsonl").write_text('{"id": "mine", "query": "q"}\n', encoding="utf-8")
    assert write_config(folder, "my_package.agents.Mine") == [folder / "config.yaml"]
    assert "mine" in (folder / "tasks.jsonl").read_text()
    assert config.load(folder / "config.yaml").run.workflow.use == "my_package.agents.Mine"


AGENTS = """
from framework import Agent, Answer
agent = Agent()
def make(): return Agent()
async def rewards(data, *, base_url): return 1.0
async def leaves(data): return None
class Rewards:
    async def run(self, data): return {"id": 1.0}
class Leaves:
    async def run(self, data):
        if not data: return
        return Answer("4")
class Crew(Agent): pass
"""


@pytest.mark.parametrize(
    ("name", "scorer"),
    [
        *((name, "exact_match") for name in ("agent", "make", "leaves", "Leaves", "Crew")),
        *((name, None) for name in ("rewards", "Rewards", "gone")),
    ],
)
def test_an_agent_without_rewards_gets_a_scorer(folder, name, scorer):
    Path("mine.py").write_text(AGENTS, encoding="utf-8")
    write_config(folder, f"mine.py:{name}")
    assert config.load(folder / "config.yaml").run.data.default_scorer == scorer
    assert "default_scorer: exact_match" in (folder / "config.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(("agent", "told"), [("Agent", "expected file.py:name"), ("gone.py:run", "no file gone.py")])
def test_an_agent_that_is_not_there_is_refused(folder, agent, told):
    with pytest.raises(UsageError, match=told):
        write_config(folder, agent)
    assert not (folder / "config.yaml").exists()


def test_nothing_is_overwritten(folder):
    write_demo(folder)
    for again in (lambda: write_demo(folder), lambda: write_config(folder, "agent.py:Adder")):
        with pytest.raises(UsageError, match=r"config.yaml.*: exists already"):
            again()


def test_the_command_says_what_to_type_next(launch, folder):
    done = launch("init")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-2:] == ["next:", "  agentrl run demo/config.yaml"]
    mine = launch("init", "--agent", "demo/agent.py:Adder")
    assert mine.stdout.splitlines()[-2:] == ["  agentrl doctor config.yaml", "  agentrl run config.yaml"]
    assert (folder / "config.yaml").is_file()
    again = launch("init")
    assert again.returncode == 2
    assert "exists already" in again.stderr
