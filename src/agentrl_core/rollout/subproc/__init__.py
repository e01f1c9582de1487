"""Agents in worker processes (`rollout.agent.mode: subproc`), of this interpreter or of another.

`resolving` is the entry. `pool` hands out workers and `process` drives one of them. What runs in a worker is in the
folder `inside`.
"""
