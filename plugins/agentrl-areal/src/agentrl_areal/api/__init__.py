"""Counterpart of `areal.api`: base classes of workflows, requests and responses, reward functions."""

from __future__ import annotations

from typing import Any

from agentrl_areal.api.engine_api import InferenceEngine
from agentrl_areal.api.io_struct import ModelRequest, ModelResponse
from agentrl_areal.api.reward_api import AsyncRewardWrapper
from agentrl_areal.api.workflow_api import AgentWorkflow, RolloutWorkflow, WorkflowLike
from agentrl_areal.elsewhere import explain

__all__ = [
    "AgentWorkflow",
    "AsyncRewardWrapper",
    "InferenceEngine",
    "ModelRequest",
    "ModelResponse",
    "RolloutWorkflow",
    "WorkflowLike",
]

_RUN = "the run's config decides this; see `agentrl config show`"
_ELSEWHERE = dict.fromkeys(
    (
        "AllocationType", "FSDPParallelStrategy", "FinetuneSpec", "Job", "LocalInfServerInfo",
        "MegatronParallelStrategy", "ModelAllocation", "ParallelStrategy", "ParamSpec", "RolloutStat", "SaveLoadMeta",
        "Scheduler", "StepInfo", "TrainEngine", "WeightUpdateMeta", "Worker",
    ),
    _RUN,
)  # fmt: skip


def __getattr__(name: str) -> Any:
    raise explain(__name__, name, _ELSEWHERE)
