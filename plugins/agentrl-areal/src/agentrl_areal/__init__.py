"""Compatibility package for AReaL, another framework for reinforcement learning of language models.

It has the names that workflows and agents for AReaL import, in the same places: `areal.X` is `agentrl_areal.X`. A name
of AReaL that has no counterpart raises an ImportError that says what to use instead.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from agentrl_areal.elsewhere import explain

if TYPE_CHECKING:
    from agentrl_areal import workflow_context

__all__ = ["workflow_context"]

_TRAINER = "`agentrl run CONFIG`, or agentrl_core.Trainer(config).train(workflow=…, workflow_kwargs=…)"
_ELSEWHERE = {
    "PPOTrainer": _TRAINER,
    "SFTTrainer": "`agentrl sft CONFIG`, or agentrl_core.FineTuner",
    **dict.fromkeys(("RolloutController", "TrainController", "WorkflowExecutor", "StalenessManager"), _TRAINER),
}


def __getattr__(name: str) -> Any:
    # Imported on first use, because it imports the HTTP client.
    if name == "workflow_context":
        return importlib.import_module("agentrl_areal.workflow_context")
    raise explain(__name__, name, _ELSEWHERE)
