"""AReaL's name of what `arun_episode` is given."""

from agentrl_core.generation import TokenEngine as InferenceEngine

__all__ = ["InferenceEngine"]
