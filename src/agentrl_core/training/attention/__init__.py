"""How a micro-batch is run through a model so that what its sequences share is computed once."""

from agentrl_core.training.attention.choice import Attention, AttentionName, choose

__all__ = ["Attention", "AttentionName", "choose"]
