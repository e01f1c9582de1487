"""Scorer of the quickstart's task for agents whose final output is what their last move was told."""

from agentrl_core import ScoreRequest


def found(request: ScoreRequest) -> float:
    """Return 1.0 if the last move ended at the thing, else 0.0."""
    return float(request.answer == "Found!")
