"""Cost of agents in worker processes: per warm episode, after a kill, and with an HTTP client per agent.

The policy is scripted; the gateway, the store and the runner are those of a training run. CPU time is that of this
process and its descendants, so other programs on the machine do not count. Wall time is that of one episode at a time.
All run in turns, and the median of the repeats counts; less is better.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import psutil
from openai import AsyncOpenAI
from tests.benchmarks.report import Row, report

from agentrl_core.config.sampling_sections import AgentConfig, RolloutConfig
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.subproc.inside.share_tls_context import shared_tls
from agentrl_core.rollout.subproc.resolving import resolve_in_workers
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.types import Outcome, Task
from agentrl_testing.workflows import Rehearsal

if TYPE_CHECKING:
    from agentrl_core.rollout.workflow_call import ResolvedWorkflow

BARS = (
    "bars: subproc_over_inline added_cpu_ms and added_wall_ms <= 10; own_clients_256 added_cpu_s <= 1;",
    "pool_recovery_s: from kill -9 of the only worker to the next finished episode",
)
CLIENTS = 256
AGENT = "tests.benchmarks.trivial_agent:Trivial"


async def with_shared_client(data, *, base_url, api_key, http_client):  # type: ignore[no-untyped-def]
    """Make one call by the SDK on the shared client."""
    client = AsyncOpenAI(base_url=f"{base_url}/v1", api_key=api_key, http_client=http_client, max_retries=0)
    await client.chat.completions.create(model="default", messages=data["messages"])
    return 1.0


async def with_own_client(data, *, base_url, api_key):  # type: ignore[no-untyped-def]
    """Make one call by the SDK on a client of its own."""
    async with AsyncOpenAI(base_url=f"{base_url}/v1", api_key=api_key, max_retries=0) as client:
        await client.chat.completions.create(model="default", messages=data["messages"])
    return 1.0


@attrs.frozen(kw_only=True)
class Spent:
    """What some episodes cost."""

    cpu_s: float
    wall_s: float


@attrs.frozen
class Stage:
    """A rehearsal, and what its episodes cost."""

    rehearsal: Rehearsal

    def inline(self, workflow: object) -> ResolvedWorkflow:
        """Resolve a workflow for this process."""
        return resolve_workflow(workflow, registry=load_registry(), base_dir=Path.cwd())

    def apart(self, workflow: object) -> ResolvedWorkflow:
        """Resolve a workflow for one process of its own."""
        config = RolloutConfig(agent=AgentConfig(mode="subproc", subproc_max_workers=1))
        return resolve_in_workers(workflow, registry=load_registry(), base_dir=Path.cwd(), rollout=config)

    def play(self, workflow: ResolvedWorkflow, count: int, *, at_once: int) -> float:
        """Run episodes, and return the last one's reward."""
        message = {"role": "user", "content": "What is 2 + 2?"}
        tasks = [Task(id=f"t{number}", data={"messages": [message]}) for number in range(at_once)]
        for _ in range(count // at_once):
            episodes = self.rehearsal.play(workflow, tasks)
            for episode in episodes:
                if episode.record.outcome is not Outcome.SCORED:
                    sys.exit(f"an episode ended {episode.record.outcome}: {episode.record.detail}")
        return float(episodes[-1].record.reward or 0.0)

    def cost(self, workflow: ResolvedWorkflow, count: int, *, at_once: int) -> Spent:
        """Measure some episodes."""
        cpu, wall = _cpu_seconds(), time.perf_counter()
        self.play(workflow, count, at_once=at_once)
        return Spent(cpu_s=_cpu_seconds() - cpu, wall_s=time.perf_counter() - wall)


def _cpu_seconds() -> float:
    """CPU seconds of this process and of those below it; of this one exactly, of the others in ticks of 10 ms."""
    below = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(times.user + times.system for times in below)


def subproc_over_inline(stage: Stage, repeats: int) -> Iterator[Row]:
    """What an episode costs more in a process of its own, once that is warm."""
    episodes = 200
    workflows = [stage.inline(AGENT), stage.apart(AGENT)]
    for workflow in workflows:
        stage.play(workflow, 20, at_once=1)
    spent = [[stage.cost(workflow, episodes, at_once=1) for workflow in workflows] for _ in range(repeats)]
    for metric, read in (("added_cpu_ms", _cpu), ("added_wall_ms", _wall)):
        inline = statistics.median(read(pair[0]) for pair in spent) / episodes * 1000
        added = statistics.median(read(pair[1]) - read(pair[0]) for pair in spent) / episodes * 1000
        yield Row(case="subproc_over_inline", metric=metric, ours=added, peer=inline, peer_name="a whole inline one")


def pool_recovery_s(stage: Stage, repeats: int) -> Iterator[Row]:
    """How long it takes until the next episode has ended once the only worker was killed."""
    workflow = stage.apart(AGENT)
    took = []
    for _ in range(repeats):
        pid = int(stage.play(workflow, 1, at_once=1))
        os.kill(pid, signal.SIGKILL)
        began = time.perf_counter()
        stage.play(workflow, 1, at_once=1)
        took.append(time.perf_counter() - began)
    yield Row(case="pool_recovery_s", metric="wall_s", ours=statistics.median(took))


def own_clients_256(stage: Stage, repeats: int) -> Iterator[Row]:
    """What it costs that 256 agents build an `AsyncOpenAI` each, with the shared TLS context and without."""
    shared, own = stage.inline(with_shared_client), stage.inline(with_own_client)
    for workflow in (shared, own):
        stage.play(workflow, 16, at_once=16)
    added: dict[bool, list[float]] = {True: [], False: []}
    for number in range(repeats):
        for sharing, measured in added.items():
            if number and not sharing:  # it takes 15 s of CPU, whatever the noise
                continue
            least = stage.cost(shared, CLIENTS, at_once=32).cpu_s
            with shared_tls() if sharing else contextlib.nullcontext():
                measured.append(stage.cost(own, CLIENTS, at_once=32).cpu_s - least)
    ours, peer = (statistics.median(measured) for measured in added.values())
    yield Row(case="own_clients_256", metric="added_cpu_s", ours=ours, peer=peer, peer_name="a TLS context each")


def _cpu(spent: Spent) -> float:
    return spent.cpu_s


def _wall(spent: Spent) -> float:
    return spent.wall_s


CASES: dict[str, Callable[[Stage, int], Iterator[Row]]] = {
    "subproc_over_inline": subproc_over_inline,
    "pool_recovery_s": pool_recovery_s,
    "own_clients_256": own_clients_256,
}


def measure(cases: Sequence[str], repeats: int) -> list[Row]:
    """Run the cases, each on a stage of its own."""
    rows: list[Row] = []
    for case in cases:
        print(f"{case} …", file=sys.stderr, flush=True)  # noqa: T201 - all of it takes a minute
        with tempfile.TemporaryDirectory() as folder:
            rehearsal = Rehearsal(Path(folder), lambda prompt: "4")
            try:
                rows += CASES[case](Stage(rehearsal), repeats)
            finally:
                rehearsal.close()
    return rows


def main() -> None:
    """Measure, print the table and write build/benchmarks/workflows.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    arguments = parser.parse_args()
    report("workflows", measure(arguments.cases, arguments.repeats), better="less is better", notes=BARS)


if __name__ == "__main__":
    main()
