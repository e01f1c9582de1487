"""One training run from config to summary: the only place that knows both sampling and training."""

from agentrl_core.run.sft import FineTuner
from agentrl_core.run.trainer import Trainer, resume

__all__ = ["FineTuner", "Trainer", "resume"]
