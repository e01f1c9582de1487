"""Scorer of the quickstart's task for agents whose tool replies are in the messages."""

from agentrl_core import ScoreRequest


def found(request: ScoreRequest) -> float:
    """Return 1.0 if any move ended at the thing, else 0.0."""
    return float(any(message["role"] == "tool" and message["content"] == "Found!" for message in request.messages))
