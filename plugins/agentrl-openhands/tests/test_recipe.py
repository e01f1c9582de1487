"""The recipe in cookbook/openhands, some steps of it as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[3] / "cookbook" / "openhands"
SHORT = (
    "warm_start.steps=40",
    "trainer.steps=1",
    "eval.every=0",
    "eval.tasks=1",
    "rollout.tasks_per_step=2",
    "rollout.agent.subproc_max_workers=1",
)


@pytest.mark.slow
def test_a_step_of_the_recipe_trains(framework_python, tmp_path):
    command = [sys.executable, "-m", "agentrl_core", "run", str(RECIPE / "config.yaml"), "--name", "smoke", *SHORT]
    command += [f"output_dir={tmp_path}", f"rollout.agent.python={framework_python}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    # 3: the few episodes of a step may all get the same reward, so that nothing was learned
    assert done.returncode in {0, 3}, done.stdout + done.stderr
    events = map(json.loads, (tmp_path / "smoke" / "metrics.jsonl").read_text().splitlines())
    (step,) = (event for event in events if event["event"] == "step_finished")
    assert step["metrics"]["reward/mean"] >= 0.0
