"""Scorer of one move, by the replies of the tool; the OpenHands recipe uses it too."""

import sys
from pathlib import Path

from agentrl_core import ScoreRequest

sys.path.append(str(Path(__file__).parents[1] / "quickstart"))  # the task is the quickstart's
from quest import Quest


def follows_the_clue(request: ScoreRequest) -> float:
    """Return 1.0 for exactly one move with the direction and the steps of the clue, else 0.0."""
    clue = Quest(request.task.data["sideways"], request.task.data["up"]).clue()
    said = [message["content"] for message in request.messages if message["role"] == "tool"]
    return float(said == [clue.replace("It is", "You went")])
