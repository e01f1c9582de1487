"""Counterpart of `areal.api.io_struct`: requests and responses of the policy in token ids."""

from agentrl_core import ModelRequest, ModelResponse

__all__ = ["ModelRequest", "ModelResponse"]
