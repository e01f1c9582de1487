"""Policy-gradient losses and how they are aggregated."""

from agentrl_core.losses.aggregate import AggregationConfig, split_options

__all__ = ["AggregationConfig", "split_options"]
