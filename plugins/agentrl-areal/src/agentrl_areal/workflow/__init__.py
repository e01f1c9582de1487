"""Counterpart of `areal.workflow`: AReaL's own workflows, for configs and code that name them.

A copy of AReaL's file with changed import lines works just as well.
"""

from __future__ import annotations

import importlib
from typing import Any

from agentrl_areal.elsewhere import explain

__all__ = ["MultiTurnWorkflow", "RLVRWorkflow"]

_HOMES = {"MultiTurnWorkflow": "multi_turn", "RLVRWorkflow": "rlvr"}
_ELSEWHERE = {"VisionRLVRWorkflow": "calls in token ids show no images; let an agent send them in its messages"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise explain(__name__, name, _ELSEWHERE)
