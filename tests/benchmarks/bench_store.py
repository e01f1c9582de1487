"""Speed of the SQLite store with several sampler processes on one file, and of claims in a run with a million tasks.

`sqlite_4`: four processes claim, append 50 KB and finish; the peer is a plain table with one transaction per operation.
`grow_1e6`: CPU time of a claim with a million tasks and a million ended groups, against a thousand.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
from tests.benchmarks.report import Row, report
from tests.benchmarks.store import plain, work

from agentrl_core.api.members import Member
from agentrl_core.api.stores import StepRow
from agentrl_core.stores.sqlite import SQLiteStore

BARS = ("bars: sqlite_4 episodes_per_s >= 800, max_claim_ms <= 200 (less is better); grow_1e6 ratio <= 1.2",)
PROCESSES = 4
MEMBERS_S = 300.0
"""Longest wait for the processes."""


@attrs.frozen(kw_only=True)
class Measured:
    """Speed of some processes together."""

    episodes_per_s: float
    max_claim_ms: float
    median_claim_ms: float
    cpu_ms_per_episode: float
    """CPU time of all processes, which depends less on what else the machine does."""


def sqlite_4(options: argparse.Namespace) -> Iterator[Row]:
    """Measure four sampler processes, ours and plain ones in turns."""
    found: dict[str, list[Measured]] = {"ours": [], "plain": []}
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            file = Path(folder, "runs.sqlite")
            asyncio.run(_create(file))
            command = ["-m", "tests.benchmarks.store.work", str(file), "run", str(options.episodes)]
            found["ours"].append(_measure(command, options.episodes))
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            file = Path(folder, "plain.sqlite")
            plain.create(file, options.episodes)
            found["plain"].append(_measure(["-m", "tests.benchmarks.store.plain", str(file)], options.episodes))
    for metric in ("episodes_per_s", "max_claim_ms", "median_claim_ms", "cpu_ms_per_episode"):
        ours, peer = (statistics.median(getattr(run, metric) for run in runs) for runs in found.values())
        yield Row(case="sqlite_4", metric=metric, ours=ours, peer=peer, peer_name="plain table")


async def _create(file: Path) -> None:
    store = SQLiteStore(path=file)
    await work.create(store, "run")
    await store.close()


def _measure(command: list[str], episodes: int) -> Measured:
    """Start the processes, let them begin together, and check that each episode was run once."""
    processes = [
        subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    try:
        for process in processes:
            assert process.stdout
            if process.stdout.readline() != "joined\n":
                sys.exit(f"{' '.join(command)}: a process ended before it joined")
        for process in processes:
            assert process.stdin
            process.stdin.close()
            process.stdin = None
        results: list[dict[str, Any]] = [json.loads(process.communicate(timeout=MEMBERS_S)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    done = sum(result["episodes"] for result in results)
    if done != episodes:
        sys.exit(f"{' '.join(command)}: {done} of {episodes} episodes were run")
    wall_s = max(result["ended"] for result in results) - min(result["began"] for result in results)
    claims = [1000 * took for result in results for took in result["claim_s"]]
    return Measured(
        episodes_per_s=done / wall_s,
        max_claim_ms=max(claims),
        median_claim_ms=statistics.median(claims),
        cpu_ms_per_episode=1000 * sum(result["cpu_s"] for result in results) / done,
    )


def grow_1e6(options: argparse.Namespace) -> Iterator[Row]:
    """Measure claims in a small and in a large run, in turns, on two files."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = asyncio.run(_claims(Path(folder), options))
    large, small = (statistics.median(spent) * 1e6 for spent in found)
    yield Row(case="grow_1e6", metric="cpu_us_per_claim", ours=large, peer=small, peer_name="1e3 tasks")


async def _claims(folder: Path, options: argparse.Namespace) -> tuple[list[float], list[float]]:
    samplers = []
    for size in (options.tasks, 1000):
        store = SQLiteStore(path=folder / f"{size}.sqlite")
        await work.create(store, "run", tasks=size)
        sampler = work.Sampler(store, Member(run_id="run", role="sample"), work.admission(size), tasks=size)
        await store.join(sampler.member)
        await _end_groups(sampler, size)
        await store.admit("run", 1)  # a step has consumed these groups, so as many may start
        samplers.append(sampler)
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(options.claims):
        for sampler, times in zip(samplers, spent, strict=True):
            began = time.process_time()
            claims = await sampler.claim(1)
            times.append(time.process_time() - began)
            # an ended group is not pending, so all claims find as few pending groups
            await sampler.store.finish_group(claims[0], usable=False)
    for sampler in samplers:
        await sampler.store.close()
    return spent


async def _end_groups(sampler: work.Sampler, count: int) -> None:
    """Claim groups without records, end them and train them."""
    left = count
    groups: list[str] = []
    while left:
        claims = await sampler.claim(min(left, 5000))
        for claim in claims:
            await sampler.store.finish_group(claim, usable=True)
        groups += [group.id for group in await sampler.store.take_groups("run", len(claims))]
        left -= len(claims)
    step = StepRow(run_id="run", step=1, version=1, groups=groups, records=(), metrics={})
    await sampler.store.add_step(step)


CASES: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {"sqlite_4": sqlite_4, "grow_1e6": grow_1e6}


def main() -> None:
    """Measure, print the table and write build/benchmarks/store.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--repeats", type=int, default=3, help="of sqlite_4")
    parser.add_argument("--episodes", type=int, default=8000, help="of each repeat of sqlite_4")
    parser.add_argument("--tasks", type=int, default=1_000_000, help="of grow_1e6")
    parser.add_argument("--claims", type=int, default=500, help="of grow_1e6")
    parser.add_argument("--folder", type=Path, help="for the files, instead of the system's temporary folder")
    options = parser.parse_args()
    rows: list[Row] = []
    for case in options.cases:
        print(f"{case} …", file=sys.stderr, flush=True)  # noqa: T201 - all of it takes minutes
        rows += CASES[case](options)
    report("store", rows, notes=BARS)


if __name__ == "__main__":
    main()
