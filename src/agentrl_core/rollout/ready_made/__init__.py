"""Workflows to begin with: agents of one or several turns, and the base of samplers in AgentRL's style."""
