"""Judges a finished quest by what the agent was told."""

from agentrl_core import ScoreRequest


def found(request: ScoreRequest) -> float:
    """1.0 if a move ended at the thing, else 0.0."""
    return float(any(message["role"] == "tool" and message["content"] == "Found!" for message in request.messages))
