"""The examples of the README work."""

import json
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from agentrl_core.config import load
from agentrl_core.plugins.manager import load_registry
from agentrl_core.run.checks import check_config
from agentrl_reasoning_gym import ReasoningGym

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def block(language, start):
    (found,) = (text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if text.startswith(start))
    return found


def test_the_config_is_valid_but_for_its_model(tmp_path):
    (tmp_path / "config.yaml").write_text(block("yaml", "# config.yaml"), encoding="utf-8")
    loaded = load(tmp_path / "config.yaml")
    assert [problem for problem in check_config(loaded)[0] if "model.path" not in problem] == []
    sets = {key: load_registry().build("datasets", attrs.evolve(source, options={**source.options, "size": 9}))()
            for key, source in loaded.run.data.sources.items()}  # fmt: skip
    assert {key: len(tasks) for key, tasks in sets.items()} == {"data.train": 9, "data.eval": 9}


def test_every_option_is_told_with_its_default():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", README, re.MULTILINE))
    fields = {item.name: item.default for item in attrs.fields(ReasoningGym)}
    told = {attrs.NOTHING: "required", None: "-", "": "-", "train": "`train`"}
    assert rows == {name: told.get(default, str(default)) for name, default in fields.items()}


@pytest.mark.slow
def test_the_tiny_model_trains(tmp_path):
    (tmp_path / "demos.py").write_text(block("python", "# demos.py"), encoding="utf-8")
    (tmp_path / "tiny.yaml").write_text(block("yaml", "# tiny.yaml"), encoding="utf-8")
    subprocess.run([sys.executable, "demos.py"], check=True, cwd=tmp_path)
    short = ("warm_start.steps=20", "trainer.steps=1", "eval.tasks=2", "rollout.tasks_per_step=4")
    command = [sys.executable, "-m", "agentrl_core", "run", "tiny.yaml", "--name", "smoke", *short]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    # 3: the few episodes of a step may all get the same reward, so that nothing was learned
    assert done.returncode in {0, 3}, done.stdout + done.stderr
    events = map(json.loads, (tmp_path / "runs/smoke/metrics.jsonl").read_text(encoding="utf-8").splitlines())
    (step,) = (event for event in events if event["event"] == "step_finished")
    assert 0.0 <= step["metrics"]["reward/mean"] < 1.0
    assert step["metrics"]["rollout/groups"] == 4
