"""The HTTP front that agents talk to, and the ledger of what they sampled."""

from agentrl_core.gateway.core import Gateway
from agentrl_core.gateway.sessions import Session

__all__ = ["Gateway", "Session"]
