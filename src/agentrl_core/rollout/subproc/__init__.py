"""Agents in worker processes (`rollout.agent.mode: subproc`), of this interpreter or of another.

`resolving` is the entry. `pool` hands out workers, `process` drives one of them, and `worker` is the script that runs
inside it.
"""
