"""Train the LLM agent that you already have with reinforcement learning."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl_core import errors
    from agentrl_core.api import context as workflow_context
    from agentrl_core.api.losses import LossBatch, LossOutput
    from agentrl_core.api.scoring import Answer, Score, ScoreRequest
    from agentrl_core.api.token_level import GenerationHyperparameters, ModelRequest, ModelResponse
    from agentrl_core.api.workflow import AgentWorkflow, RolloutWorkflow, Workflow
    from agentrl_core.config.schema import RunConfig
    from agentrl_core.engines.remote.engine import RemoteEngine
    from agentrl_core.plugins.hookspecs import Register, hookimpl
    from agentrl_core.rollout.ready_made.samplers import AsyncSampler
    from agentrl_core.run import FineTuner, Trainer
    from agentrl_core.scorers.registration import register_scorer
    from agentrl_core.scorers.reward_wrapper import AsyncRewardWrapper
    from agentrl_core.types import Interaction, Record, Task

    __version__: str

__all__ = [
    "AgentWorkflow",
    "Answer",
    "AsyncRewardWrapper",
    "AsyncSampler",
    "FineTuner",
    "GenerationHyperparameters",
    "Interaction",
    "LossBatch",
    "LossOutput",
    "ModelRequest",
    "ModelResponse",
    "Record",
    "Register",
    "RemoteEngine",
    "RolloutWorkflow",
    "RunConfig",
    "Score",
    "ScoreRequest",
    "Task",
    "Trainer",
    "Workflow",
    "__version__",
    "errors",
    "hookimpl",
    "register_scorer",
    "workflow_context",
]

# Imported on first use (PEP 562): `import agentrl_core` costs nothing, so that the command line starts at once.
_HOMES = {
    "AgentWorkflow": "agentrl_core.api.workflow:AgentWorkflow",
    "Answer": "agentrl_core.api.scoring:Answer",
    "AsyncRewardWrapper": "agentrl_core.scorers.reward_wrapper:AsyncRewardWrapper",
    "AsyncSampler": "agentrl_core.rollout.ready_made.samplers:AsyncSampler",
    "FineTuner": "agentrl_core.run:FineTuner",
    "GenerationHyperparameters": "agentrl_core.api.token_level:GenerationHyperparameters",
    "Interaction": "agentrl_core.types:Interaction",
    "LossBatch": "agentrl_core.api.losses:LossBatch",
    "LossOutput": "agentrl_core.api.losses:LossOutput",
    "ModelRequest": "agentrl_core.api.token_level:ModelRequest",
    "ModelResponse": "agentrl_core.api.token_level:ModelResponse",
    "Record": "agentrl_core.types:Record",
    "Register": "agentrl_core.plugins.hookspecs:Register",
    "RemoteEngine": "agentrl_core.engines.remote.engine:RemoteEngine",
    "RolloutWorkflow": "agentrl_core.api.workflow:RolloutWorkflow",
    "RunConfig": "agentrl_core.config.schema:RunConfig",
    "Score": "agentrl_core.api.scoring:Score",
    "ScoreRequest": "agentrl_core.api.scoring:ScoreRequest",
    "Task": "agentrl_core.types:Task",
    "Trainer": "agentrl_core.run:Trainer",
    "Workflow": "agentrl_core.api.workflow:Workflow",
    "errors": "agentrl_core.errors:",
    "hookimpl": "agentrl_core.plugins.hookspecs:hookimpl",
    "register_scorer": "agentrl_core.scorers.registration:register_scorer",
    "workflow_context": "agentrl_core.api.context:",
}


class _Moved:
    """Finds modules at the places that they had before; the last of all finders, so that it costs imports nothing."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> Any:  # noqa: ARG004  # a finder's interface
        """Return the spec of a module that has moved."""
        if not name.startswith("agentrl_core."):
            return None
        from agentrl_core.moved import moved_spec

        return moved_spec(name)


sys.meta_path.append(_Moved)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from agentrl_core.plugins.discovery import core_version

        value: Any = core_version()
    elif name in _HOMES:
        module, _, attr = _HOMES[name].partition(":")
        value = importlib.import_module(module)
        value = getattr(value, attr) if attr else value
    elif name == "hookspec":
        from agentrl_core.moved import renamed

        return renamed(__name__, name)
    else:
        raise AttributeError(f"module 'agentrl_core' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
