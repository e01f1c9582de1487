"""The scorer `code`: find the Python program in an answer and run the task's unit tests on it."""

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
from agentrl_code.sandbox import SHARED, Limits, best_level, refusal_of
from agentrl_code.verdicts import run_tests
from agentrl_core import Score
from agentrl_core.api.scored_text import Of, scored_text
from agentrl_core.errors import ConfigError

if TYPE_CHECKING:
    from agentrl_core import ScoreRequest, Task

# Possessive quantifiers (`*+`) keep the search linear: an answer may be a million characters of back quotes or spaces.
_FENCE = re.compile(r"^[ \t]*+```[ \t]*+([\w+-]*+)[^\n]*+\n(.*?)^[ \t]*+```", re.DOTALL | re.MULTILINE)
_PYTHON = ("python", "py", "python3")
_LONGEST = 1_000_000
"""Characters of a program; a longer one fails without being run."""
_SHOWN_FAILURES = 5
"""Failed tests whose reasons are stored with the score."""


@attrs.frozen(kw_only=True)
class Code:
    """Score 1 if the program in the answer passes all `tests` of the task, or with `score: share` the share passed.

    The program is the last block fenced as Python, else the last fenced block, else the whole text. A test has one of
    two forms. For `{"input": …, "output": …}` the program must print the output when it reads the input, and end with
    exit code 0. A test in Python code, such as asserts, runs in its own process and reaches the program's functions
    and classes by remote calls.

    Each test starts the program again in a sandbox that never holds the expected results. `isolation` is the level of
    the sandbox: `full`, `confined` (without namespaces) or `limits` (only bounds on time, memory and files); `auto` is
    the better one of `full` and `confined` that the machine allows. If the machine does not allow the chosen level,
    the run does not start.
    """

    score: Literal["all", "share"] = "all"
    of: Of = "answer"
    timeout_s: float = field(default=10.0, validator=validators.gt(0))
    """Time for all tests of an answer together; tests for which no time is left fail."""
    memory_mb: int = field(default=512, validator=validators.gt(0))
    """Address space of each test's process."""
    file_mb: int = field(default=16, validator=validators.gt(0))
    """Total size of the files that a test's process may write."""
    output_kb: int = field(default=256, validator=validators.gt(0))
    """Largest output of each test."""
    packages: bool = False
    """Permission for programs to import the packages installed in agentrl's environment, such as numpy."""
    isolation: Literal["auto", "full", "confined", "limits"] = "auto"
    needs_reference: ClassVar[bool] = False

    def check_task(self, task: Task) -> None:
        """Raise ValueError if the task has no sound tests."""
        read_tests(task.data)

    async def check(self, *, gateway_url: str | None) -> Sequence[str]:  # noqa: ARG002 - all scorers' checks get it
        """Return warnings about weak isolation. Raises ConfigError if the machine does not allow the level."""
        level, why = await self._level()
        if self.isolation == "auto" and why:
            return (f"scorer 'code': programs run with isolation '{level}'; 'full' is not available here: {why}",)
        if level != LIMITS:
            return ()
        if refusal := await refusal_of(LIMITS, SHARED):
            raise ConfigError(f"scorer 'code': programs cannot run with isolation 'limits' here: {refusal}")
        return ("scorer 'code': isolation 'limits' does not protect this machine from programs",)

    async def __call__(self, request: ScoreRequest) -> Score:
        """Return a score from 0 to 1; its details name the first failed tests with their reasons."""
        tests = read_tests(request.task.data)
        program = find_program(scored_text(request, self.of))
        if why := _unfit(program):
            return Score(0.0, details={"passed": 0, "tests": len(tests), "failures": [why]})
        # Half of a surrogate pair cannot be sent as UTF-8; a "?" takes its place.
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
        """Return the level to use, and the reason why the machine has no better one."""
        if sys.platform == "win32":
            raise ConfigError("scorer 'code': not available on Windows; use Linux, or macOS with `isolation: limits`")
        if self.isolation == LIMITS:
            return LIMITS, ""
        if "best" not in _found:
            _found["best"] = await best_level(SHARED)
        best, why = _found["best"]
        if best is None or (self.isolation == FULL and best != FULL):
            weaker, how = (LIMITS, "") if best is None else (CONFINED, "fully ")
            raise ConfigError(
                f"scorer 'code': programs cannot be {how}isolated here ({why}); to run them on a machine that they may "
                f"harm, set `scorers: {{programs: {{use: code, isolation: {weaker}}}}}` and use the scorer `programs`"
            )
        return (best if self.isolation == "auto" else self.isolation), why


_found: dict[str, tuple[Level | None, str]] = {}
"""Result of `best_level` for this machine, under the key `best`; empty until it was first needed."""


def _unfit(program: str) -> str:
    """Return the reason why a program fails without being run; empty if there is none."""
    if not program.strip():
        return "the answer has no program"
    if len(program) > _LONGEST:
        return f"the program has {len(program):,} characters; at most {_LONGEST:,} are run"
    return "the program contains a null character" if "\0" in program else ""


def find_program(text: str) -> str:
    """Return the program in an answer: its last Python block, else its last fenced block, else the whole text."""
    blocks = _FENCE.findall(text)
    tagged = [code for language, code in blocks if language.lower() in _PYTHON]
    plain = [code for _, code in blocks]
    return next((found[-1] for found in (tagged, plain) if found), text)
