"""The kit that proves plugins: conformance suites, doubles and checks.

Subclass a suite in your tests and give its fixtures; a suite cannot be weakened without `xfail(reason=…)`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl_core.testing.adapters import AdapterSuite
    from agentrl_core.testing.base import ConformanceSuite
    from agentrl_core.testing.engines import EngineSuite
    from agentrl_core.testing.losses import LossSuite, check_loss
    from agentrl_core.testing.plugins import check_plugin, isolated_plugins
    from agentrl_core.testing.policy import toy_policy
    from agentrl_core.testing.scorers import ScorerSuite, check_scorer
    from agentrl_core.testing.scripted import ScriptedEngine
    from agentrl_core.testing.stores import StoreSuite
    from agentrl_core.testing.workflows import WorkflowSuite

_MODULES = {
    "AdapterSuite": "adapters",
    "ConformanceSuite": "base",
    "EngineSuite": "engines",
    "LossSuite": "losses",
    "ScorerSuite": "scorers",
    "ScriptedEngine": "scripted",
    "StoreSuite": "stores",
    "WorkflowSuite": "workflows",
    "check_loss": "losses",
    "check_plugin": "plugins",
    "check_scorer": "scorers",
    "isolated_plugins": "plugins",
    "toy_policy": "policy",
}

__all__ = [
    "AdapterSuite",
    "ConformanceSuite",
    "EngineSuite",
    "LossSuite",
    "ScorerSuite",
    "ScriptedEngine",
    "StoreSuite",
    "WorkflowSuite",
    "check_loss",
    "check_plugin",
    "check_scorer",
    "isolated_plugins",
    "toy_policy",
]


def __getattr__(name: str) -> Any:
    """Import on use: half of the kit needs torch, half of it pytest."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
