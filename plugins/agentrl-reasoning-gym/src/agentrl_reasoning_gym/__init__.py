"""Train on the generated tasks of reasoning-gym."""

from agentrl_reasoning_gym.dataset import ReasoningGym
from agentrl_reasoning_gym.scorer import ReasoningGymScorer

__all__ = ["ReasoningGym", "ReasoningGymScorer"]
