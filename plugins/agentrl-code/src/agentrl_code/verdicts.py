"""Running a program against its tests, for the scorer.

A test with input and output runs the program in one sandbox; the trainer compares the output itself. A test in Python
runs in a second sandbox and calls the program in the first one over a socket. Either way the expected results never
enter the process of the program.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from agentrl_code.inside.judge import PASSED
from agentrl_code.inside.proxies import ENDED_EARLY
from agentrl_code.sandbox import Ended, Limits, Role, Sandboxes, SandboxLostError, own_folder

if TYPE_CHECKING:
    from agentrl_code.inside.levels import Level

_LONGEST_WHY = 500
"""Characters of a reason; a longer one is cut. Programs choose the text of their exceptions."""


async def run_tests(
    program: str, tests: Sequence[Mapping[str, str]], limits: Limits, *, level: Level, go_on: bool, sandboxes: Sandboxes
) -> list[str]:
    """Run `program` with each test, `{"asserts": CODE}` or `{"input": TEXT, "output": TEXT}`.

    Return one text per test that ran: empty if it passed, else the reason. Without `go_on` the tests after the first
    failure do not run. `limits.timeout_s` bounds all tests together. At most as many programs run at a time as the
    machine has cores; waiting for a free place does not count as time of the tests. Raises SandboxLostError if no
    sandbox could be started.
    """
    async with _places():
        deadline = time.monotonic() + limits.timeout_s
        failures: list[str] = []
        for test in tests:
            left = deadline - time.monotonic()
            run = _Run(program, attrs.evolve(limits, timeout_s=left), level, sandboxes)
            failures.append(await run.judge(test) if left > 0 else "not run: the tests before it used up timeout_s")
            if failures[-1] and not go_on:
                break
        return failures


@attrs.frozen
class _Run:
    """A program with the limits and the isolation under which one test runs."""

    program: str
    limits: Limits
    level: Level
    sandboxes: Sandboxes

    async def judge(self, test: Mapping[str, str]) -> str:
        """Return why a test failed; empty if it passed.

        If a sandbox dies while its program runs, either that program or the machine (out of memory, for example) may
        be the cause. The test is then tried once more, and a second loss counts as a failure: otherwise a program
        could exchange a score of 0 for no score.
        """
        judge = self._asserts if "asserts" in test else self._output
        lost = ""
        for _ in range(2):
            try:
                return (await judge(test))[:_LONGEST_WHY]
            except SandboxLostError as error:
                if not error.begun:
                    raise
                lost = str(error)
        return lost

    async def _output(self, test: Mapping[str, str]) -> str:
        ended = await self._in_sandbox("script", self.program, given=test["input"])
        if why := _failed(ended):
            return why
        if _lines(ended.out) == _lines(test["output"]):
            return ""
        return f"the program printed {ended.out[:100]!r}, expected {test['output'][:100]!r}"

    async def _asserts(self, test: Mapping[str, str]) -> str:
        """Run the test's code in one sandbox and the program in another, connected by a socket."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            program = asyncio.create_task(self._in_sandbox("serve", self.program, channel=theirs))
            judge = asyncio.create_task(self._in_sandbox("judge", test["asserts"], channel=ours))
            try:
                verdict = await judge
                if verdict.status == PASSED and not verdict.why:
                    return ""
                if not verdict.err.startswith(ENDED_EARLY):
                    return verdict.why or _last_line(verdict.err) or _exit(verdict.status)
                # The test only knows that the connection closed. The program's own sandbox knows why it ended.
                ended = await program
            finally:
                for task in (program, judge):
                    task.cancel()
                await asyncio.gather(program, judge, return_exceptions=True)
        return ended.why or _last_line(ended.err) or f"{ENDED_EARLY}: {_exit(ended.status)}"

    async def _in_sandbox(
        self, role: Role, code: str, *, given: str = "", channel: socket.socket | None = None
    ) -> Ended:
        with own_folder(self.level) as folder:
            return await self.sandboxes.run(
                role, code, self.limits, self.level, folder=folder, given=given, channel=channel
            )


def _failed(ended: Ended) -> str:
    if ended.why or ended.status == 0:
        return ended.why
    return (_last_line(ended.err) if ended.status == 1 else "") or _exit(ended.status)


def _exit(status: int) -> str:
    return f"the process ended with signal {-status}" if status < 0 else f"the process ended with exit code {status}"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def _lines(text: str) -> list[str]:
    """Return the lines of an output, without white space at line ends and without empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _places() -> asyncio.Semaphore:
    """Return the semaphore that bounds the programs of this event loop.

    There is one per loop, because an asyncio semaphore belongs to the loop that first waits for it.
    """
    loop = asyncio.get_running_loop()
    if loop not in _semaphores:
        _semaphores[loop] = asyncio.Semaphore(os.cpu_count() or 1)
    return _semaphores[loop]


_semaphores: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()
