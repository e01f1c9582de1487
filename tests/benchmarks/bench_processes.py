"""Cost and faults of a call in a worker process: ours, pebble's pool and the standard library's, both by spawn.

CPU time is that of this process and its descendants. Less is better everywhere; 1 means that the fault is present.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from tests import process_calls as calls
from tests.benchmarks.environment import environment
from tests.benchmarks.report import Row, report

from agentrl_core.concurrency.processes import close_workers, run_in_process
from agentrl_core.concurrency.secrecy import withhold

Call = Callable[..., Any]
"""`call(function, *args, timeout_s)` in a pool of one worker."""
SECRET = "BENCH_ADMIN_KEY"
LIMIT_S = 1.0
GRACE_S = 3.0
"""Longest wait for processes to be gone before they count as left behind."""


@contextlib.contextmanager
def ours() -> Iterator[Call]:
    """Our workers."""

    with asyncio.Runner() as runner:
        try:
            yield lambda function, *args, timeout_s=30.0: runner.run(
                run_in_process(function, *args, timeout_s=timeout_s, max_workers=1)
            )
        finally:
            close_workers()


@contextlib.contextmanager
def pebble() -> Iterator[Call]:
    """Pebble's pool; pebble needs no other package, so its environment serves as one more folder of modules."""
    made = environment("pebble", "pebble")
    sys.path.extend(str(folder) for folder in made.glob("lib/python*/site-packages") if str(folder) not in sys.path)
    from pebble import ProcessPool

    pool = ProcessPool(max_workers=1, context=multiprocessing.get_context("spawn"))
    try:
        yield lambda function, *args, timeout_s=30.0: (
            # The second limit is for a pool that is broken and never answers.
            pool.schedule(function, args=args, timeout=timeout_s).result(timeout_s + GRACE_S)
        )
    finally:
        pool.stop()
        pool.join(GRACE_S)


@contextlib.contextmanager
def library() -> Iterator[Call]:
    """The standard library's pool, which cannot end a call."""
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield lambda function, *args, timeout_s=30.0: pool.submit(function, *args).result(timeout_s)
    finally:
        for process in tuple((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)


POOLS = {"ours": ours, "pebble": pebble, "concurrent.futures": library}


def main() -> None:
    """Measure, print the table and write build/benchmarks/processes.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--hang", nargs=2, metavar=("POOL", "FILE"), help="used by the benchmark itself")
    options = parser.parse_args()
    if options.hang:
        with POOLS[options.hang[0]]() as call:
            call(calls.hang, Path(options.hang[1]), timeout_s=60.0)
        return
    os.environ[SECRET] = "k" * 32
    withhold(SECRET)
    found = {name: dict(measured(name, options.repeats)) for name in POOLS}
    rows = [
        Row(case=case, metric=metric, ours=value, peer=found[peer].get((case, metric)), peer_name=peer)
        for (case, metric), value in found["ours"].items()
        for peer in list(POOLS)[1:]
    ]
    report("processes", rows, better="less is better")


def measured(name: str, repeats: int) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield (case, metric) and value of one pool."""
    with POOLS[name]() as call:
        cpu_s, wall_s = spent(lambda: call(calls.add, 1, 1))
        yield ("first call", "cpu_ms"), cpu_s * 1000
        yield ("first call", "wall_ms"), wall_s * 1000
        cpu_s, wall_s = spent(lambda: [call(calls.add, 1, 1) for _ in range(repeats)])
        yield ("next call", "cpu_ms"), cpu_s / repeats * 1000
        yield ("next call", "wall_ms"), wall_s / repeats * 1000
        yield ("environment", "secret readable"), float(SECRET in str(call(calls.read_start_environment)))
        yield ("exit code 3", "next call fails"), fails_after(call, calls.die)
    with POOLS[name]() as call:
        yield ("result unreadable here", "next call fails"), fails_after(call, calls.give_what_cannot_be_read)
    with POOLS[name]() as call:
        before = psutil.Process().memory_info().rss
        with contextlib.suppress(Exception):
            kept = call(bytes, 200 * 2**20)  # noqa: F841 - measured while it is held
        yield ("result of 200 MB", "parent grows by MB"), (psutil.Process().memory_info().rss - before) / 2**20
    for case, hang in (("timeout of 1 s", calls.hang), ("timeout of 1 s, a child", calls.hang_with_a_child)):
        with POOLS[name]() as call, tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "pid")
            call(calls.add, 1, 1)
            began = time.monotonic()
            with contextlib.suppress(Exception):
                call(hang, file, timeout_s=LIMIT_S)
            if case == "timeout of 1 s":
                yield (case, "late by ms"), (time.monotonic() - began - LIMIT_S) * 1000
                yield (case, "next call fails"), fails_after(call, calls.add, 1, 1)
            yield (case, "process left"), left(int(file.read_text()))
    with tempfile.TemporaryDirectory() as folder:
        yield ("parent killed in a call", "process left"), left_by_killed_parent(name, Path(folder, "pid"))


def spent(work: Callable[[], object]) -> tuple[float, float]:
    """Return CPU and wall seconds of some work."""
    cpu, began = total_cpu_s(), time.perf_counter()
    work()
    wall = time.perf_counter() - began
    return total_cpu_s() - cpu, wall


def total_cpu_s() -> float:
    """Return the CPU seconds of this process and of its descendants."""
    total = time.process_time()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
            text = Path(f"/proc/{process.pid}/schedstat").read_text(encoding="ascii")
            total += int(text.split()[0]) / 1e9
    return total


def fails_after(call: Call, *args: Any) -> float:
    """Return 1 if the call after this one fails."""
    with contextlib.suppress(Exception):
        call(*args)
    try:
        return float(call(calls.add, 1, 1, timeout_s=10.0) != 2)
    except Exception:  # noqa: BLE001 - whatever a peer raises
        return 1.0


def left(pid: int) -> float:
    """Return 1 if a process does not end soon, and end it."""
    end = time.monotonic() + GRACE_S
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return 0.0
        except psutil.NoSuchProcess:
            return 0.0
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    return 1.0


def left_by_killed_parent(name: str, file: Path) -> float:
    """Kill a process in the middle of a call; return 1 if its worker goes on."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_processes", "--hang", name, str(file)]
    parent = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not (file.exists() and file.read_text()):
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    return left(int(file.read_text()))


if __name__ == "__main__":
    main()
