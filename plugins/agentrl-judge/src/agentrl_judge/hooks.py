"""Hooks of agentrl-judge: register the judge as a scorer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentrl_core import hookimpl

if TYPE_CHECKING:
    from agentrl_core import Register


@hookimpl
def register_scorers(register: Register[Any]) -> None:
    """Register the judge as `judge` and as `agentcpm`, the name in task files of AgentCPM's AgentRL."""
    for name in ("judge", "agentcpm"):
        register(name, "agentrl_judge.judge:Judge", summary="asks language models whether an answer is right")
