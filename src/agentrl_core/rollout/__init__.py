"""Sampling: schedule groups of tasks, run the agent once per record, and store its reward.

`scheduler` decides which group starts when, `runner` runs one episode, and `workflows` turns the config's `workflow`
into a callable. Code inside an agent imports `api.context`.
"""
