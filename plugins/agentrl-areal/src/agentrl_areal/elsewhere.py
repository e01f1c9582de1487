"""Errors for names of AReaL that are not here: which of ours do the same."""

from __future__ import annotations

from collections.abc import Mapping


def explain(module: str, name: str, elsewhere: Mapping[str, str]) -> Exception:
    """Return what a module's `__getattr__` raises: an ImportError for a known name, which an import line shows."""
    if name in elsewhere:
        theirs = module.replace("agentrl_areal", "areal", 1)
        return ImportError(f"{theirs}.{name} has no counterpart in agentrl_areal: {elsewhere[name]}", name=module)
    return AttributeError(f"module '{module}' has no attribute '{name}'")
