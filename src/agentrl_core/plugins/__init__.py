"""The plugin system: hook specifications, discovery, the manager that loads packages, the registry of components."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

_MOVED = ("PluginManager", "load_registry", "registrar")
"""Names of the module that this package was in agentrl 0.1; gone in 0.3."""


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    told = f"{__name__}.{name} is now {__name__}.manager.{name}; the old name goes with agentrl-core 0.3"
    warnings.warn(told, DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module(f"{__name__}.manager"), name)
