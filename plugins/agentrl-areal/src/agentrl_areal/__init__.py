"""AReaL's names, so that workflows and agents that were written for it run here: `areal.X` is `agentrl_areal.X`."""

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
    if name == "workflow_context":  # imported on first use: it brings the HTTP client
        return importlib.import_module("agentrl_areal.workflow_context")
    raise explain(__name__, name, _ELSEWHERE)
