"""Test kit for plugin authors: conformance suites for pytest, `check_…` functions for scripts, and fakes.

Subclass a suite in your tests and define its fixtures. A subclass can switch off a test of its suite only with
`xfail(reason=…)`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl_core.engines.scripted import ScriptedEngine
    from agentrl_testing.adapters import AdapterSuite
    from agentrl_testing.advantages import AdvantageSuite, check_advantage
    from agentrl_testing.base import ConformanceSuite
    from agentrl_testing.commands import CommandSuite, check_command
    from agentrl_testing.contexts import ContextPolicySuite, check_context
    from agentrl_testing.corrections import CorrectionSuite, check_correction
    from agentrl_testing.credits import CreditSuite, check_credit
    from agentrl_testing.datasets import DatasetSuite, check_dataset
    from agentrl_testing.engines import EngineSuite
    from agentrl_testing.episodes import made_up_episode, made_up_group
    from agentrl_testing.filters import FilterSuite, check_filter
    from agentrl_testing.group_orders import GroupOrderSuite, check_group_order
    from agentrl_testing.losses import LossSuite, check_loss
    from agentrl_testing.models import ModelSuite, check_model
    from agentrl_testing.plugins import check_plugin, isolated_plugins
    from agentrl_testing.policy import toy_policy
    from agentrl_testing.scorers import ScorerSuite, check_scorer
    from agentrl_testing.shapings import ShapingSuite, check_shaping
    from agentrl_testing.stores import StoreSuite
    from agentrl_testing.tool_middleware import ToolMiddlewareSuite, check_tool_middleware
    from agentrl_testing.tool_parsers import ToolParserSuite, check_tool_parser
    from agentrl_testing.tool_servers import ToolDriver, ToolServerSuite, check_tool_server
    from agentrl_testing.trackers import TrackerSuite, check_tracker
    from agentrl_testing.worker_adapters import WorkerAdapterSuite
    from agentrl_testing.workflows import WorkflowSuite

_MODULES = {
    "AdapterSuite": "adapters",
    "AdvantageSuite": "advantages",
    "CommandSuite": "commands",
    "ConformanceSuite": "base",
    "ContextPolicySuite": "contexts",
    "CorrectionSuite": "corrections",
    "CreditSuite": "credits",
    "DatasetSuite": "datasets",
    "EngineSuite": "engines",
    "FilterSuite": "filters",
    "GroupOrderSuite": "group_orders",
    "LossSuite": "losses",
    "ModelSuite": "models",
    "ScorerSuite": "scorers",
    "ScriptedEngine": "agentrl_core.engines.scripted",
    "ShapingSuite": "shapings",
    "StoreSuite": "stores",
    "ToolDriver": "tool_servers",
    "ToolMiddlewareSuite": "tool_middleware",
    "ToolParserSuite": "tool_parsers",
    "ToolServerSuite": "tool_servers",
    "TrackerSuite": "trackers",
    "WorkerAdapterSuite": "worker_adapters",
    "WorkflowSuite": "workflows",
    "check_advantage": "advantages",
    "check_command": "commands",
    "check_context": "contexts",
    "check_correction": "corrections",
    "check_credit": "credits",
    "check_dataset": "datasets",
    "check_filter": "filters",
    "check_group_order": "group_orders",
    "check_loss": "losses",
    "check_model": "models",
    "check_plugin": "plugins",
    "check_scorer": "scorers",
    "check_shaping": "shapings",
    "check_tool_middleware": "tool_middleware",
    "check_tool_parser": "tool_parsers",
    "check_tool_server": "tool_servers",
    "check_tracker": "trackers",
    "isolated_plugins": "plugins",
    "made_up_episode": "episodes",
    "made_up_group": "episodes",
    "toy_policy": "policy",
}

__all__ = [
    "AdapterSuite",
    "AdvantageSuite",
    "CommandSuite",
    "ConformanceSuite",
    "ContextPolicySuite",
    "CorrectionSuite",
    "CreditSuite",
    "DatasetSuite",
    "EngineSuite",
    "FilterSuite",
    "GroupOrderSuite",
    "LossSuite",
    "ModelSuite",
    "ScorerSuite",
    "ScriptedEngine",
    "ShapingSuite",
    "StoreSuite",
    "ToolDriver",
    "ToolMiddlewareSuite",
    "ToolParserSuite",
    "ToolServerSuite",
    "TrackerSuite",
    "WorkerAdapterSuite",
    "WorkflowSuite",
    "check_advantage",
    "check_command",
    "check_context",
    "check_correction",
    "check_credit",
    "check_dataset",
    "check_filter",
    "check_group_order",
    "check_loss",
    "check_model",
    "check_plugin",
    "check_scorer",
    "check_shaping",
    "check_tool_middleware",
    "check_tool_parser",
    "check_tool_server",
    "check_tracker",
    "isolated_plugins",
    "made_up_episode",
    "made_up_group",
    "toy_policy",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: some modules of the kit need torch, others pytest."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES[name]
    return getattr(importlib.import_module(module if "." in module else f"{__name__}.{module}"), name)
