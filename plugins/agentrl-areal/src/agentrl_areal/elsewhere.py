"""Errors for names of AReaL that this package does not have, with the replacement in agentrl."""

from __future__ import annotations

from collections.abc import Mapping


def explain(module: str, name: str, elsewhere: Mapping[str, str]) -> Exception:
    """Return the exception for a module's `__getattr__` to raise.

    For a known name of AReaL it is an ImportError, because `from … import` replaces an AttributeError, and its message,
    by its own ImportError.
    """
    if name in elsewhere:
        theirs = module.replace("agentrl_areal", "areal", 1)
        return ImportError(f"{theirs}.{name} has no counterpart in agentrl_areal: {elsewhere[name]}", name=module)
    return AttributeError(f"module '{module}' has no attribute '{name}'")
