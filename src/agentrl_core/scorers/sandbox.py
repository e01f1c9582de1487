"""Run a program's tests in a separate process with limits, and read its report."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

_HARNESS = Path(__file__).with_name("code_harness.py")
_GRACE_S = 20.0
"""What the harness may need to start and to end, beyond the time of the tests."""
_GOODBYE_S = 2.0


@attrs.frozen(kw_only=True)
class Limits:
    """What one program may take, in all its tests together where nothing else is said."""

    timeout_s: float
    memory_mb: int
    """Address space of each test's process."""
    file_mb: int
    """Size of each file that it writes."""
    output_kb: int
    """What each test may print."""


@attrs.frozen(kw_only=True)
class Report:
    """How the tests ended."""

    failures: tuple[str, ...]
    """One text per test that was run: empty where it passed."""
    isolation: tuple[str, ...]
    """The means that were in force beside the limits: `user`, `files`, `calls`."""


async def run_tests(program: str, tests: Sequence[Mapping[str, str]], limits: Limits, *, go_on: bool) -> Report:
    """Run `program` with each test: `{"asserts": CODE}` or `{"input": TEXT, "output": TEXT}`.

    Without `go_on` the first failure is the last test. No more programs run at a time than there are cores; the wait
    for one is no part of the time. Cancelling this ends the program. Raises RuntimeError where there is no report.
    """
    async with _places():
        with tempfile.TemporaryDirectory(prefix="agentrl-code-", ignore_cleanup_errors=True) as folder:
            job = {
                **attrs.asdict(limits),
                "program": program,
                "tests": [dict(test) for test in tests],
                "go_on": go_on,
                "folder": folder,
                "token": secrets.token_hex(16),
            }
            return await _run_job(job, folder)


async def _run_job(job: Mapping[str, Any], folder: str) -> Report:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-I", "-B", "-X", "utf8", str(_HARNESS)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=folder,
        env=_environment(folder),
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(job["timeout_s"] + _GRACE_S):
            out, err = await process.communicate(json.dumps(job).encode())
    except TimeoutError as error:
        raise RuntimeError("the process that runs the tests did not end in time; it was killed") from error
    finally:
        await _stop(process)
    token, _, text = out.decode(errors="replace").partition(" ")
    if token != job["token"]:
        said = err.decode(errors="replace").strip().splitlines()[-1:] or ["nothing"]
        raise RuntimeError(f"the process that runs the tests gave no report; it said: {said[0][:300]}")
    report = json.loads(text)
    return Report(failures=tuple(report["why"]), isolation=tuple(report["isolation"]))


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End the harness, which ends its program; kill it where it does not."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_GOODBYE_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _environment(folder: str) -> dict[str, str]:
    """Nothing of ours: no key of a provider is a program's business."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", **one_thread}


def _places() -> asyncio.Semaphore:
    """Return the semaphore of this event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _semaphores:
        _semaphores[loop] = asyncio.Semaphore(os.cpu_count() or 1)
    return _semaphores[loop]


_semaphores: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()
