"""Sampling: schedule groups of tasks, run the agent once per record, and store its reward.

`scheduler` decides which group starts when, `runner` runs one episode, `workflows` turns the config's `workflow` into a
callable, and `context` is what code inside an agent imports.
"""
