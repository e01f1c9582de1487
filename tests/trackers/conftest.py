"""Fixtures for tracker tests: the reports of a small run."""

from __future__ import annotations

import pytest

from agentrl_core.api.trackers import EvalReport, RunInfo, RunSummary, StepReport


class Reports:
    def __init__(self, directory):
        self.directory = directory

    def run(self, **fields):
        default = {
            "name": "calm-otter",
            "config": {"trainer": {"steps": 40}},
            "components": {"losses:grpo": "agentrl-core==0.1.0 a:B"},
        }
        return RunInfo(directory=str(self.directory), **{**default, **fields})

    def step(self, step, reward=0.5, **metrics):
        return StepReport(
            step=step, version=step + 1, metrics={"reward/mean": reward, **metrics}, outcomes={"scored": 8}
        )

    def evaluation(self, step, **rewards):
        errors = dict.fromkeys(rewards, 0.01)
        return EvalReport(step=step, rewards=rewards, records=dict.fromkeys(rewards, 256), errors=errors)

    def summary(self, **fields):
        default = {
            "name": "calm-otter",
            "directory": str(self.directory),
            "status": "finished",
            "steps": 40,
            "version": 40,
            "evals": (self.evaluation(0, heldout=0.25, seen=0.5), self.evaluation(40, heldout=0.9375, seen=1.0)),
            "outcomes": {"failed(ValueError)": 3, "scored": 12_500},
            "llm_calls": 24_310,
            "cpu_seconds": {"agent": 61.25, "gateway": 24.0, "engine": 80.5, "learner": 70.25},
            "wall_s": 251.2,
            "head": "3e81f72b",
        }
        return RunSummary(**{**default, **fields})


@pytest.fixture
def reports(tmp_path):
    return Reports(tmp_path)
