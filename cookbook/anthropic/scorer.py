"""Judges a finished walk by what the agent was told last."""

from agentrl_core import ScoreRequest


def found(request: ScoreRequest) -> float:
    """1.0 if the last move ended at the thing, else 0.0."""
    return float(request.answer == "Found!")
