"""Sample scorer that is registered by an entry point; it compares the last number of the answer."""

from agentrl_core import ScoreRequest


def score(request: ScoreRequest) -> float:
    """1.0 if the last number in the reply equals the reference, else 0.0."""
    numbers = request.answer.replace(",", "").split()
    return float(bool(numbers) and numbers[-1].strip("$.") == request.reference)
