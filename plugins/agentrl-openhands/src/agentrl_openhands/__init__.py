"""Adapter that trains unmodified OpenHands agents, in a Python environment that has OpenHands but not agentrl."""
