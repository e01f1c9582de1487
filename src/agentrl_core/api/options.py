"""Re-exports for packages: build objects from options, import what options name, errors that name file and line."""

from agentrl_core.config.nearest import did_you_mean
from agentrl_core.config.nodes import Node, Place, Problem, describe, from_python, refusal
from agentrl_core.config.yaml_text import read_file
from agentrl_core.plugins.options import Where, construct
from agentrl_core.plugins.references import resolve, user_folders

__all__ = [
    "Node",
    "Place",
    "Problem",
    "Where",
    "construct",
    "describe",
    "did_you_mean",
    "from_python",
    "read_file",
    "refusal",
    "resolve",
    "user_folders",
]
