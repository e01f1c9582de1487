"""Adapter that trains unmodified CAMEL agents, in a Python environment that has CAMEL but not agentrl."""
