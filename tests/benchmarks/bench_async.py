"""Sampling ahead of training: what it gains with slow tools, what it costs in one process, and at 512 GPUs (simulated).

`slow_tools` trains with synchronous sampling and two versions ahead; `one_process` runs the quickstart by this source
and by a commit before it, in turns; `simulated_512` scales a published experiment on 128 GPUs, see `cluster`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
from rich.console import Console
from rich.table import Table
from tests.benchmarks.bench_tree import Bar
from tests.benchmarks.cluster import published
from tests.benchmarks.cluster.simulation import Result, Setting, simulate
from tests.benchmarks.environment import environment
from tests.benchmarks.report import Row, report
from tests.benchmarks.store.work import seconds_per_record

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "cookbook/quickstart"
GROUP_SIZE = 8
"""Of the quickstart."""
ETAS = (1, 2, 4, 8)
_SYNCHRONOUS, _PEER_COMMIT = "synchronous", "earlier commit"
BARS = (
    Bar("slow_tools", "records_per_hour", _SYNCHRONOUS, least=2.0),
    Bar("slow_tools", "final_reward_difference", "", least=-0.01),
    # Against the median: a synchronous run that collapses would lower the mean, and the bar with it.
    Bar("slow_tools", "lowest_final_reward_difference", "", least=-0.1),
    Bar("one_process", "cpu_s", _PEER_COMMIT, most=1.05),
)


@attrs.frozen(kw_only=True)
class Trained:
    """A finished training run."""

    records_per_hour: float
    """Trained records per hour of the steps, without start and evaluation."""
    reward: float
    """Mean reward on all held-out tasks after the last step."""
    cpu_s: float


def slow_tools(options: argparse.Namespace) -> Iterator[Row]:
    """Compare training with tools of 200 ms at `max_head_offpolicyness` 0 and 2."""
    runs: dict[int, list[Trained]] = {0: [], 2: []}
    agent = f"workflow={ROOT / 'tests/benchmarks/slow_quest.py'}:SlowQuestAgent"
    rollout = ("rollout.tasks_per_step=4", "rollout.max_concurrent_rollouts=128")
    for seed in range(options.seeds):
        for eta, found in runs.items():
            found.append(
                train(Path(sys.executable), options.steps, agent, *rollout, f"seed={seed}", f"{_AHEAD}={eta}", warm=1)
            )
    ahead, synchronous = (statistics.median(run.records_per_hour for run in runs[eta]) for eta in (2, 0))
    yield Row(case="slow_tools", metric="records_per_hour", ours=ahead, peer=synchronous, peer_name=_SYNCHRONOUS)
    rewards = {eta: [run.reward for run in found] for eta, found in runs.items()}
    means = {eta: statistics.mean(found) for eta, found in rewards.items()}
    yield Row(case="slow_tools", metric="final_reward", ours=means[2], peer=means[0], peer_name=_SYNCHRONOUS)
    # pairs have the same seed, so the same model and tasks
    differences = [ahead - synchronous for ahead, synchronous in zip(rewards[2], rewards[0], strict=True)]
    error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else math.nan
    half = _STUDENT.get(len(differences), 2.0) * error
    yield Row(case="slow_tools", metric="final_reward_difference", ours=means[2] - means[0])
    yield Row(case="slow_tools", metric="final_reward_difference, 95 % interval +-", ours=half)
    for eta, name in ((2, "lowest_final_reward_difference"), (0, "lowest_synchronous_difference")):
        yield Row(case="slow_tools", metric=name, ours=min(rewards[eta]) - statistics.median(rewards[0]))


_STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Number of seeds -> half width of the 95 % interval of their mean, in standard errors."""
_AHEAD = "rollout.max_head_offpolicyness"


def one_process(options: argparse.Namespace) -> Iterator[Row]:
    """Compare CPU seconds of the quickstart with those of an earlier commit."""
    peer = environment(
        f"core-{options.peer_commit}",
        "-c",
        ROOT / "constraints.txt",
        f"git+{ROOT.as_uri()}@{options.peer_commit}",
        "openai",
    )
    pythons = {"ours": Path(sys.executable), "peer": peer / "bin/python"}
    spent: dict[str, list[float]] = {name: [] for name in pythons}
    for _ in range(options.repeats):
        for name, python in pythons.items():
            spent[name].append(train(python, options.steps, f"workflow={QUICKSTART / 'workflow.py'}:QuestAgent").cpu_s)
    ours, theirs = (statistics.median(found) for found in spent.values())
    yield Row(case="one_process", metric="cpu_s", ours=ours, peer=theirs, peer_name=_PEER_COMMIT)


def train(python: Path, steps: int, *overrides: str, warm: int = 0) -> Trained:
    """Train the quickstart's model with `agentrl run` in a process of its own; leave out `warm` steps of the speed."""
    with tempfile.TemporaryDirectory() as folder:
        settings = (f"trainer.steps={steps}", "trainer.stop_at_reward=null", "eval.every=0", "trackers=[jsonl]")
        command = [python, "-m", "agentrl_core", "run", QUICKSTART / "config.yaml", "--name", "run"]
        environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(QUICKSTART), "PYTHONDONTWRITEBYTECODE": ""}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [*map(str, command), *settings, *overrides],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))}: {done.stderr[-2000:]}")
        events = [json.loads(line) for line in Path(folder, "runs/run/metrics.jsonl").read_text().splitlines()]
    taken = [event["metrics"] for event in events if event["event"] == "step_finished"][warm:]
    evaluated = [event for event in events if event["event"] == "evaluated"]
    return Trained(
        records_per_hour=GROUP_SIZE
        * sum(step["rollout/groups"] for step in taken)
        / sum(step["time/step_s"] for step in taken)
        * 3600,
        reward=evaluated[-1]["rewards"]["heldout"],
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    )


def simulated_512(options: argparse.Namespace) -> Iterator[Row]:
    """Simulate four times the published experiment: 512 GPUs, 2,048 groups of 16 per step."""
    with tempfile.TemporaryDirectory() as folder:
        store_s = asyncio.run(seconds_per_record(Path(folder)))
    responses, costs = published.calibrated(), published.SYNCHRONOUS[published.CELL]
    print(f"measured: {store_s * 1000:.2f} ms of the store per record", file=sys.stderr)  # noqa: T201
    table = Table(title="simulated, 512 GPUs except the first two rows", caption=_CAPTION, caption_justify="left")
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column == "run" else "right")
    synchronous: Result | None = None
    for cells in (1, 4):
        setting = Setting(
            eta=0,
            generators=cells * published.CELL,
            groups=cells * published.PROMPTS,
            group_size=published.RESPONSES,
            responses=responses,
            train_s=costs.log_probs_s + costs.update_s + costs.rest_s - published.PUBLISH_S,
            publish_s=published.PUBLISH_S,
            store_s=store_s,
            steps=options.simulated_steps,
            warm_up=options.simulated_steps // 3,
        )
        synchronous = simulate(setting)
        table.add_row(f"{cells * published.CELL} GPUs, synchronous", *_cells(synchronous, synchronous))
        # half of the GPUs generate and half train, as in the published run
        apart: dict[str, Any] = {"generators": cells * published.CELL // 2, "train_s": published.SEPARATE_UPDATE_S}
        for eta in (2,) if cells == 1 else ETAS:
            found = simulate(setting, eta=eta, **apart)
            table.add_row(f"{cells * published.CELL} GPUs, eta {eta}", *_cells(found, synchronous))
            yield from _rows(f"simulated_{cells * published.CELL} eta {eta}", found, synchronous)
        found = simulate(setting, eta=2, partial=False, **apart)
        table.add_row(f"{cells * published.CELL} GPUs, eta 2, uninterrupted", *_cells(found, synchronous))
    Console(width=120).print(table)


def _rows(case: str, found: Result, synchronous: Result) -> Iterator[Row]:
    """Yield the rows of one simulated run."""
    peers = published.SPEEDUPS if "512" in case else {"verl, 128 GPUs": published.SPEEDUP_128}
    for name, speedup in peers.items():
        ratio = synchronous.step_s / found.step_s
        yield Row(case=case, metric="speedup", ours=ratio, peer=speedup, peer_name=f"{name} (published)")
    yield Row(
        case=case,
        metric="generators_idle",
        ours=found.generators_idle,
        peer=synchronous.generators_idle,
        peer_name="synchronous",
    )
    yield Row(case=case, metric="trainers_idle", ours=found.trainers_idle)
    yield Row(case=case, metric="partial_records", ours=found.partial)


_COLUMNS = ("run", "step s", "speedup", "gen. idle", "train. idle", "recomputing", "partial", "lag", "store busy")
_CAPTION = (
    "published: AReaL 2.77x, verl 1.62x, ROLL Flash 2.72x; the experiment on 128 GPUs itself: 356.3 s to 150.6 s,\n"
    "2.37x, with up to half a batch of stale samples and partial rollouts.\n"
    "The synchronous runs use all GPUs for both, so each side is idle while the other works; the others use half of\n"
    "the GPUs for each."
)


def _cells(found: Result, synchronous: Result) -> Sequence[str]:
    shares = (found.generators_idle, found.trainers_idle, found.recomputing, found.partial)
    return (
        f"{found.step_s:.1f}",
        f"{synchronous.step_s / found.step_s:.2f}x",
        *(f"{share:.0%}" for share in shares),
        f"{found.mean_lag:.1f}, <= {found.max_lag}",
        f"{found.store_busy:.0%}",
    )


CASES: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "slow_tools": slow_tools,
    "one_process": one_process,
    "simulated_512": simulated_512,
}


def main() -> None:
    """Measure, print the tables and write build/benchmarks/async.json; end with code 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--steps", type=int, default=30, help="of each training run")
    parser.add_argument("--seeds", type=int, default=10, help="of slow_tools")
    parser.add_argument("--repeats", type=int, default=3, help="of one_process")
    parser.add_argument("--peer-commit", default="b4e66aa", help="that one_process compares with")
    parser.add_argument("--simulated-steps", type=int, default=30)
    options = parser.parse_args()
    rows: list[Row] = []
    for case in options.cases:
        print(f"{case} …", file=sys.stderr, flush=True)  # noqa: T201 - all of it takes many minutes
        rows += CASES[case](options)
    verdicts = [line for bar in BARS if (line := bar.judge(rows))]
    report("async", rows, notes=verdicts)
    if any(line.endswith("MISSED") for line in verdicts):
        sys.exit("async: a bar is missed, see the lines below the table")


if __name__ == "__main__":
    main()
