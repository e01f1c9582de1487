"""How packages plug in: hook specifications, discovery, the manager that loads them and the registry of components."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Answer for the module that this package was in agentrl 0.1; gone in 0.3."""
    from agentrl_core.plugins import manager

    if name.startswith("_") or not hasattr(manager, name):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    import warnings

    told = f"agentrl_core.plugins.{name} is now agentrl_core.plugins.manager.{name}; the old name goes with 0.3"
    warnings.warn(told, DeprecationWarning, stacklevel=2)
    return getattr(manager, name)
