"""AReaL's `areal.infra`, as far as workflows need it."""

from agentrl_areal import workflow_context

__all__ = ["workflow_context"]
