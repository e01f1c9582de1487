"""Hooks of agentrl-areal: register AReaL's two workflows, and write the numbers of `stats_tracker` to a file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_areal.utils import stats_tracker
from agentrl_core import hookimpl

if TYPE_CHECKING:
    from agentrl_core import Register
    from agentrl_core.api.trackers import RunInfo, RunSummary, StepReport

STATS_FILE = "areal_stats.jsonl"
"""File in the run directory, with one line per step."""


@hookimpl
def register_workflows(register: Register[Any]) -> None:
    """Register AReaL's RLVRWorkflow and MultiTurnWorkflow."""
    register("areal_rlvr", "agentrl_areal.workflow.rlvr:RLVRWorkflow", summary="one reply, scored by a function")
    register(
        "areal_multi_turn",
        "agentrl_areal.workflow.multi_turn:MultiTurnWorkflow",
        summary="tries again until a function gives a reward",
    )


@hookimpl
def run_started() -> None:
    """Drop numbers that an earlier run of this process has left."""
    stats_tracker.export_all()


@hookimpl
def step_finished(run: RunInfo, step: StepReport) -> None:
    """Write the numbers that workflows reported since the last step."""
    _write(run, step.step)


@hookimpl
def run_finished(run: RunInfo, summary: RunSummary) -> None:
    """Write the numbers reported after the last step, by the evaluation."""
    _write(run, summary.steps)


def _write(run: RunInfo, step: int) -> None:
    numbers = stats_tracker.export_all()
    if not numbers:
        return
    file = os.open(Path(run.directory) / STATS_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, (json.dumps({"step": step, **numbers}) + "\n").encode())
    finally:
        os.close(file)
