"""Counterpart of `areal.api.engine_api`: `InferenceEngine`, the type of the engine passed to `arun_episode`."""

from agentrl_core.api.token_level import TokenEngine as InferenceEngine

__all__ = ["InferenceEngine"]
