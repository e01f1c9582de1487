"""AReaL's name of what `arun_episode` is given."""

from agentrl_core.api.token_level import TokenEngine as InferenceEngine

__all__ = ["InferenceEngine"]
