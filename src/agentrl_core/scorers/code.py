"""The scorer `code`: unit tests on the Python program in an answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs
from attrs import field, validators

from agentrl_core.scorers.reading import Of, judged_text
from agentrl_core.scorers.sandbox import Limits, run_tests
from agentrl_core.scoring import Score

if TYPE_CHECKING:
    from agentrl_core.scoring import ScoreRequest
    from agentrl_core.types import Task

_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
_PYTHON = ("python", "py", "python3")
_LONGEST = 1_000_000
"""Characters of a program; a longer one fails."""
_SHOWN_FAILURES = 5


@attrs.frozen(kw_only=True)
class Code:
    """Run the answer's program with the task's `tests`; give 1 if all pass, or with `score: share` the part of them.

    The program is the last block fenced as Python, else the last fenced block, else the whole text. A test is a text
    of Python, asserts for one, which runs after the program in its names; or `{"input": …, "output": …}`: the program
    must print the output when it reads the input, and end with code 0. `stdin` and `stdout` are accepted as names.

    Each test has a process of its own with limits, and none of this process's environment; it can start no other,
    send no signals and reach no network. That keeps accidents and clumsy cheats from the run; against programs that
    are written to break out, run the training in a container.
    """

    score: Literal["all", "share"] = "all"
    of: Of = "answer"
    timeout_s: float = field(default=10.0, validator=validators.gt(0))
    """For all tests of an answer together; those that had no time fail."""
    memory_mb: int = field(default=512, validator=validators.gt(0))
    file_mb: int = field(default=16, validator=validators.gt(0))
    output_kb: int = field(default=256, validator=validators.gt(0))
    needs_reference: ClassVar[bool] = False

    def check_task(self, task: Task) -> None:
        """Raise ValueError where the task's tests are none."""
        read_tests(task.data)

    async def __call__(self, request: ScoreRequest) -> Score:
        """Give a value from 0 to 1, with the reasons of the first failures in the details."""
        tests = read_tests(request.task.data)
        program = find_program(judged_text(request, self.of))
        if not program.strip() or len(program) > _LONGEST or "\0" in program:
            return Score(0.0, details={"passed": 0, "tests": len(tests), "failures": ["there is no program"]})
        limits = Limits(
            timeout_s=self.timeout_s, memory_mb=self.memory_mb, file_mb=self.file_mb, output_kb=self.output_kb
        )
        program = program.encode("utf-8", "replace").decode()
        report = await run_tests(program, tests, limits, go_on=self.score == "share")
        passed = report.failures.count("")
        failures = [f"test {number}: {why}" for number, why in enumerate(report.failures, start=1) if why]
        return Score(
            passed / len(tests) if self.score == "share" else float(passed == len(tests)),
            details={
                "passed": passed,
                "tests": len(tests),
                "failures": failures[:_SHOWN_FAILURES],
                "isolation": list(report.isolation),
            },
        )


def find_program(text: str) -> str:
    """Return the program in an answer, by `Code`'s rules."""
    blocks = _FENCE.findall(text)
    tagged = [code for language, code in blocks if language.lower() in _PYTHON]
    plain = [code for _, code in blocks]
    return next((found[-1] for found in (tagged, plain) if found), text)


def read_tests(data: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return a task's tests in one form. Raises ValueError where they are none."""
    given = data.get("tests")
    items: Sequence[Any] = [given] if isinstance(given, str) else given if isinstance(given, list) else ()
    if not items:
        raise ValueError(f"tests: expected a list of asserts or of inputs with outputs, found {given!r:.80}")
    return [_test(item, number) for number, item in enumerate(items)]


def _test(item: Any, number: int) -> dict[str, str]:
    if isinstance(item, str):
        try:
            compile(item, "test", "exec")
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"tests.{number}: expected Python, found {item!r:.80} ({error})") from error
        return {"asserts": item}
    if isinstance(item, Mapping):
        given, output = (item.get(name, item.get(other)) for name, other in (("input", "stdin"), ("output", "stdout")))
        if isinstance(output, str) and isinstance(given, str | None):
            return {"input": given or "", "output": output}
    raise ValueError(f"tests.{number}: expected a text of Python, or {{input: TEXT, output: TEXT}}, found {item!r:.80}")
