"""Scorer of one move, by the observations that smolagents writes into its last prompt."""

import re
import sys
from pathlib import Path

from agentrl_core import ScoreRequest

sys.path.append(str(Path(__file__).parents[1] / "quickstart"))  # the task is the quickstart's
from quest import Quest


def follows_the_clue(request: ScoreRequest) -> float:
    """Return 1.0 for exactly one move with the direction and the steps of the clue, else 0.0."""
    clue = Quest(request.task.data["sideways"], request.task.data["up"]).clue()
    *_, task, _ = request.messages
    observed = re.findall(r"\nObservation:\n(.*)", str(task["content"]))
    return float(observed == [clue.replace("It is", "You went")])
