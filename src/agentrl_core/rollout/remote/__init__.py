"""Sample from serving members in other processes: their choice, their sessions, and what happens when one is lost."""

from agentrl_core.rollout.remote.gateway import RemoteGateway, RemoteSession

__all__ = ["RemoteGateway", "RemoteSession"]
