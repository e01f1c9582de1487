"""The cores of this machine, shared by learner and engine: how many threads the learner takes, and how they wait."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl_core.config.schema import RunConfig

_WAITING = "OMP_WAIT_POLICY"


def wait_without_spinning() -> None:
    """Let torch's idle threads sleep; has an effect before torch is imported, and where the environment is silent.

    OpenMP's threads spin between two operations as a rule. Where another process or the engine wants the core, a
    spinning thread keeps it from the one that is waited for: a step with two threads took five times the CPU time of
    one thread on a busy machine with two cores, and as much as one thread once the idle ones slept.
    """
    os.environ.setdefault(_WAITING, "PASSIVE")


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def learner_threads(config: RunConfig, cores: int) -> tuple[int, str]:
    """Return the threads that the learner takes of `trainer.threads`, and why they are fewer; at least one.

    Synchronous training steps while the engine rests, so each may use all cores in turn; off-policy both are busy at
    once, and what the engine's threads leave is the learner's.
    """
    asked = config.trainer.threads
    engine = config.engine.options.get("threads", 1) if config.engine.use == "embedded" else 0
    taken = engine if config.rollout.max_head_offpolicyness else 0
    threads = max(1, min(asked, cores - taken))
    if threads == asked:
        return asked, ""
    beside = f", of which the engine takes {taken} while the learner is busy" if taken else ""
    return threads, f"the learner takes {threads} threads, not the {asked} of trainer.threads: {cores} cores{beside}"
