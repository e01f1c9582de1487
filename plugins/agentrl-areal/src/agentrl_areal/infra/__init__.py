"""Counterpart of `areal.infra`, with the one name that workflows import: `workflow_context`."""

from agentrl_areal import workflow_context

__all__ = ["workflow_context"]
