"""The scorer `code`: unit tests on the Python program in an answer."""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import attrs
from attrs import field, validators

from agentrl_code.inside.levels import CONFINED, FULL, LIMITS, Level
from agentrl_code.reading import read_tests
from agentrl_code.sandbox import SHARED, Limits, best_level
from agentrl_code.verdicts import run_tests
from agentrl_core import Score
from agentrl_core.api.reading import Of, judged_text
from agentrl_core.errors import ConfigError

if TYPE_CHECKING:
    from agentrl_core import ScoreRequest, Task

# possessive: answers are as long as their policy likes
_FENCE = re.compile(r"^[ \t]*+```[ \t]*+([\w+-]*+)[^\n]*+\n(.*?)^[ \t]*+```", re.DOTALL | re.MULTILINE)
_PYTHON = ("python", "py", "python3")
_LONGEST = 1_000_000
"""Characters of a program; a longer one fails."""
_SHOWN_FAILURES = 5


@attrs.frozen(kw_only=True)
class Code:
    """Run the answer's program with the task's `tests`; give 1 if all pass, or with `score: share` the part of them.

    The program is the last block fenced as Python, else the last fenced block, else the whole text. A test is
    `{"input": …, "output": …}`: the program must print the output when it reads the input, and end with code 0; or a
    text of Python, asserts for one, which runs in a process of its own and sees the program's names through calls.

    Each test runs the program anew in a sandbox that never holds what is expected. `isolation` is its level: `full`,
    `confined` (without namespaces), `limits` (bounds on time and memory alone); `auto` is the better one of the first
    two that the machine allows. A machine that does not allow the level refuses to score.
    """

    score: Literal["all", "share"] = "all"
    of: Of = "answer"
    timeout_s: float = field(default=10.0, validator=validators.gt(0))
    """For all tests of an answer together; those that had no time fail."""
    memory_mb: int = field(default=512, validator=validators.gt(0))
    """Address space of each test's process."""
    file_mb: int = field(default=16, validator=validators.gt(0))
    """Total size of the files that a test's process may write."""
    output_kb: int = field(default=256, validator=validators.gt(0))
    """Longest output of each test."""
    packages: bool = False
    """Whether programs may import the packages that are installed beside agentrl, numpy for one."""
    isolation: Literal["auto", "full", "confined", "limits"] = "auto"
    needs_reference: ClassVar[bool] = False

    def check_task(self, task: Task) -> None:
        """Raise ValueError where the task's tests are none."""
        read_tests(task.data)

    async def check(self, *, gateway_url: str | None) -> Sequence[str]:  # noqa: ARG002 - every scorer's check is told
        """Return what is weaker than it might be. Raises ConfigError where the machine does not allow the level."""
        level, why = await self._level()
        if self.isolation == "auto" and why:
            return (f"scorer 'code': isolation '{level}', which is not 'full': {why}",)
        return ("scorer 'code': isolation 'limits' keeps programs from nothing",) if level == LIMITS else ()

    async def __call__(self, request: ScoreRequest) -> Score:
        """Give a value from 0 to 1, with the reasons of the first failures in the details."""
        tests = read_tests(request.task.data)
        program = find_program(judged_text(request, self.of))
        if not program.strip() or len(program) > _LONGEST or "\0" in program:
            return Score(0.0, details={"passed": 0, "tests": len(tests), "failures": ["there is no program"]})
        program = program.encode("utf-8", "replace").decode()
        level, _ = await self._level()
        failures = await run_tests(
            program, tests, self._limits(), level=level, go_on=self.score == "share", sandboxes=SHARED
        )
        passed = failures.count("")
        reasons = [f"test {number}: {why}" for number, why in enumerate(failures, start=1) if why]
        return Score(
            passed / len(tests) if self.score == "share" else float(passed == len(tests)),
            details={
                "passed": passed,
                "tests": len(tests),
                "failures": reasons[:_SHOWN_FAILURES],
                "isolation": level,
            },
        )

    def _limits(self) -> Limits:
        paths = sysconfig.get_paths()
        return Limits(
            timeout_s=self.timeout_s,
            memory_mb=self.memory_mb,
            file_mb=self.file_mb,
            output_kb=self.output_kb,
            packages=tuple(dict.fromkeys((paths["purelib"], paths["platlib"]))) if self.packages else (),
        )

    async def _level(self) -> tuple[Level, str]:
        """Return the level to run at, and what keeps the machine from a better one."""
        if sys.platform == "win32":
            raise ConfigError("scorer 'code': it runs programs on Linux, and with `isolation: limits` on macOS")
        if self.isolation == LIMITS:
            return LIMITS, ""
        if "best" not in _found:
            _found["best"] = await best_level(SHARED)
        best, why = _found["best"]
        if best is None or (self.isolation == FULL and best != FULL):
            weaker, how = (LIMITS, "") if best is None else (CONFINED, "fully ")
            raise ConfigError(
                f"scorer 'code': programs cannot be {how}isolated here ({why}); to run them all the same, on a machine "
                f"that they may harm, set `scorers: {{programs: {{use: code, isolation: {weaker}}}}}` and name that"
            )
        return (best if self.isolation == "auto" else self.isolation), why


_found: dict[str, tuple[Level | None, str]] = {}
"""`best`: what this machine was found to allow."""


def find_program(text: str) -> str:
    """Return the program in an answer, by `Code`'s rules."""
    blocks = _FENCE.findall(text)
    tagged = [code for language, code in blocks if language.lower() in _PYTHON]
    plain = [code for _, code in blocks]
    return next((found[-1] for found in (tagged, plain) if found), text)
