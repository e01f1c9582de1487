"""The plugin system: hook specifications, discovery, the manager that loads packages, the registry of components."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from agentrl_core.moved import renamed

    return renamed(__name__, name)
