"""The commands `run`, `sft` and `runs resume` as Python calls: `Trainer`, `FineTuner` and `resume`.

Sampling and training never import each other. This package is the only one that imports and starts both.
"""

from agentrl_core.run.sft import FineTuner
from agentrl_core.run.trainer import Trainer, resume

__all__ = ["FineTuner", "Trainer", "resume"]
