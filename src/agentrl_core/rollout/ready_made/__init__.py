"""Ready-made workflows: single-turn and multi-turn agents, and the base class of samplers as in AgentCPM's AgentRL."""
