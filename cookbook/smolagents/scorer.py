"""Judges a walk by what the agent observed."""

import re
import sys
from pathlib import Path

from agentrl_core import ScoreRequest

sys.path.append(str(Path(__file__).parents[1] / "quickstart"))  # the task is the quickstart's
from quest import Quest


def follows_the_clue(request: ScoreRequest) -> float:
    """1.0 for one move where the clue points, and that far, else 0.0."""
    clue = Quest(request.task.data["sideways"], request.task.data["up"]).clue()
    *_, task, _ = request.messages
    observed = re.findall(r"\nObservation:\n(.*)", str(task["content"]))
    return float(observed == [clue.replace("It is", "You went")])
