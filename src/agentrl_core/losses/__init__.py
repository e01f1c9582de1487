"""Policy-gradient losses, what corrects them, and how they are aggregated."""

from agentrl_core.losses.aggregate import AggregationConfig
from agentrl_core.losses.corrected import Corrected, corrected
from agentrl_core.losses.section import LossSection

__all__ = ["AggregationConfig", "Corrected", "LossSection", "corrected"]
