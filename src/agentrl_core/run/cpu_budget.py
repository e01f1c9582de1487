"""CPU budget of learner and engine: number of the learner's torch threads, and how idle threads wait."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agentrl_core.plugins.discovery import names_core

if TYPE_CHECKING:
    from agentrl_core.config.schema import RunConfig

_WAITING = "OMP_WAIT_POLICY"


def wait_without_spinning() -> None:
    """Let torch's idle threads sleep instead of spin, by OMP_WAIT_POLICY.

    Call this before torch is imported: OpenMP reads the variable only once. A value that the user has set stays.

    By default OpenMP's threads spin between two operations. Where another process or the engine wants the core, a
    spinning thread holds up the very thread that it waits for. On a busy machine with two cores, a step with two
    threads took five times the CPU time of one thread; with sleeping threads it took as much as one thread.
    """
    os.environ.setdefault(_WAITING, "PASSIVE")


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def learner_threads(config: RunConfig, cores: int) -> tuple[int, str]:
    """Return the number of the learner's threads (at least 1), and why it is less than `trainer.threads`, else "".

    In synchronous training the engine is idle during a step, so learner and engine may each use all cores in turn.
    Off-policy both are busy at once, and the learner gets the cores that the engine's threads leave.
    """
    asked = config.trainer.threads
    engine = config.engine.options.get("threads", 1) if names_core(config.engine.use, "embedded") else 0
    taken = engine if config.rollout.max_head_offpolicyness else 0
    threads = max(1, min(asked, cores - taken))
    if threads == asked:
        return asked, ""
    beside = f", and the engine uses {taken} of them at the same time" if taken else ""
    return threads, f"the learner uses {threads} threads, not the {asked} of trainer.threads: {cores} cores{beside}"
