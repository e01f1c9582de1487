"""Runner of the mutation tests: `python -m tests.mutations.run [NAME_PART]`.

Heavy packages are imported once, and every run is a fork of that process. The tests of a mutation must first pass
without it. Processes that a test spawns import this module, which serves the mutation to them, too.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import attrs
import pytest
from rich.console import Console
from tests.mutations.mutation import ROOT, Mutation, StaleError
from tests.mutations.serve import serve_from_environment

if TYPE_CHECKING:
    from tests.mutations.child import Ended, Job

T = TypeVar("T")

PRELOADED = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.nn.attention.flex_attention",
    "transformers",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.qwen3.modeling_qwen3",
    "hypothesis.strategies",
)
_LIMIT_S, _LIMIT_TIMES = 60.0, 10.0
"""A run may take so long, or so many times as long as without the mutation."""
_BASELINE_S = 600.0


@attrs.frozen(kw_only=True)
class Outcome:
    """What became of a run."""

    state: str
    """`caught`, `survived`, or what went wrong."""
    by: str = ""
    seconds: float
    output: str = ""


def main() -> int:
    """Run the table, or the entries whose name has a part; 1 unless every one is caught."""
    from tests.mutations.table import TABLE

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", default="", help="only mutations with this in their name")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    chosen = [entry for entry in TABLE if asked.part in entry.name]
    if not chosen:
        parser.error(f"no mutation of {len(TABLE)} has {asked.part!r} in its name")
    return run(chosen, root=ROOT, source=ROOT / "src", processes=asked.processes, preloaded=PRELOADED)


def run(entries: Sequence[Mutation], *, root: Path, source: Path, processes: int, preloaded: Iterable[str] = ()) -> int:
    """Run mutations of the packages in `source` against the tests in `root`; the exit code of the session."""
    from tests.mutations.child import Job

    console = Console(width=max(Console().width, 190), highlight=False, markup=False, soft_wrap=True)
    try:
        texts = {entry: entry.mutated(source) for entry in entries}
    except StaleError as error:
        console.print(str(error))
        return 1
    preload(preloaded)
    if early := sorted({entry.module for entry in entries} & sys.modules.keys()):
        raise RuntimeError(f"{', '.join(early)}: imported before any mutation could be served")
    selections = list(dict.fromkeys((entry.tests, entry.slow) for entry in entries))
    unchanged = {one: Job(root=root, source=source, tests=one[0], slow=one[1]) for one in selections}
    limits: dict[tuple[tuple[str, ...], bool], float] = {}
    for one, found in _in_forks(unchanged, processes, dict.fromkeys(selections, _BASELINE_S)):
        passed = found.state == "survived"
        console.print(f"without mutation, {found.seconds:.1f} s: {' '.join(one[0])} {'passed' if passed else 'failed'}")
        if not passed:
            console.print(found.output)
        limits[one] = max(_LIMIT_S, _LIMIT_TIMES * found.seconds) if passed else 0.0
    if not all(limits.values()):
        console.print("tests fail without a mutation; nothing can be told from them")
        return 1
    jobs = {
        entry: attrs.evolve(unchanged[entry.tests, entry.slow], mutation=(entry.module, str(source / entry.file), text))
        for entry, text in texts.items()
    }
    outcomes = {}
    for entry, found in _in_forks(jobs, processes, {entry: limits[entry.tests, entry.slow] for entry in jobs}):
        outcomes[entry] = found
        console.print(_row(entry.area, entry.breaks, found))
    for entry, found in outcomes.items():
        if found.state not in ("caught", "survived"):
            console.print(f"\n{entry.name}: {found.state}\n{found.output}")
    caught = sum(found.state == "caught" for found in outcomes.values())
    console.print(f"{caught} of {len(entries)} caught")
    return int(caught != len(entries))


def preload(names: Iterable[str]) -> None:
    """Import what no fork is to import again, and take it out of the garbage collector's rounds there."""
    for name in names:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def _row(area: str, what: str, found: Outcome) -> str:
    by = found.by if found.state == "caught" else found.state.upper()
    return f"{area:<26} {what:<64} {found.seconds:6.1f} s  {by}"


@attrs.frozen(kw_only=True)
class _Running:
    process: multiprocessing.process.BaseProcess
    since: float
    until: float


def _in_forks(jobs: Mapping[T, Job], processes: int, limits_s: Mapping[T, float]) -> Iterator[tuple[T, Outcome]]:
    """Run each job in a fork of this process, so many at once; yields them as they end."""
    waiting = list(jobs)[::-1]
    running: dict[Connection, tuple[T, _Running]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                key = waiting.pop()
                receiver, started = _start(jobs[key], limits_s[key])
                running[receiver] = (key, started)
            ready = wait(running, timeout=0.5)
            now = time.monotonic()
            for receiver in [one for one, (_, started) in running.items() if one in ready or now > started.until]:
                key, started = running.pop(receiver)
                yield key, _outcome(receiver if receiver in ready else None, started, mutated=jobs[key].mutation)
    finally:
        for _, started in running.values():
            _end(started)


def _start(job: Job, limit_s: float) -> tuple[Connection, _Running]:
    from tests.mutations.child import work

    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(job, sender.send))
    process.start()
    sender.close()
    now = time.monotonic()
    return receiver, _Running(process=process, since=now, until=now + limit_s)


def _outcome(receiver: Connection | None, started: _Running, *, mutated: object) -> Outcome:
    seconds = time.monotonic() - started.since
    try:
        ended: Ended | None = receiver.recv() if receiver else None
    except EOFError:
        _end(started)
        return Outcome(state=f"process died, exit code {started.process.exitcode}", seconds=seconds)
    _end(started)
    if ended is None:
        return Outcome(state=f"not over after {seconds:.0f} s", seconds=seconds)
    codes = {pytest.ExitCode.OK: "survived", pytest.ExitCode.TESTS_FAILED: "caught"}
    state = codes.get(ended.code, f"pytest: {pytest.ExitCode(ended.code).name.lower()} {ended.by}".strip())
    if mutated and state in codes.values() and not ended.served:
        state = "the mutated module was never run"
    return Outcome(state=state, by=ended.by, seconds=seconds, output=ended.output)


def _end(started: _Running) -> None:
    """End a child and what it has started."""
    try:
        os.killpg(started.process.pid or 0, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # over, or not yet the head of its group
        started.process.kill()
    started.process.join()


if __name__ == "__mp_main__":
    serve_from_environment()

if __name__ == "__main__":
    sys.exit(main())
