"""Policy-gradient losses per token, corrections that wrap them, and their aggregation to one number."""

from agentrl_core.losses.aggregate import AggregationConfig
from agentrl_core.losses.corrected import Corrected, corrected
from agentrl_core.losses.section import LossSection

__all__ = ["AggregationConfig", "Corrected", "LossSection", "corrected"]
