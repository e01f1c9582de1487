"""Run a micro-batch through a model so that tokens shared by several sequences are computed once."""

from agentrl_core.training.attention.choice import Attention, AttentionName, choose

__all__ = ["Attention", "AttentionName", "choose"]
