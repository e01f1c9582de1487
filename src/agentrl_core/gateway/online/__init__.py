"""Agents that run elsewhere: they open, end and reward sessions by themselves."""
