"""What this package plugs into agentrl: one scorer under two names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentrl_core import hookimpl

if TYPE_CHECKING:
    from agentrl_core import Register


@hookimpl
def register_scorers(register: Register[Any]) -> None:
    """Register the judge, also under the name that AgentRL's task files use."""
    for name in ("judge", "agentcpm"):
        register(name, "agentrl_judge.judge:Judge", summary="asks language models whether the answer is right")
