"""Train smolagents' agents with agentrl, unmodified."""
