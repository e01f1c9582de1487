"""Serve online agents: agents outside of the run, which open, end and reward their own sessions over HTTP."""
