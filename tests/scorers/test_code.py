"""Programs run against tests: what passes, what fails, what is cut short, and what cannot be faked."""

import asyncio
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.errors import EpisodeError
from agentrl_core.scorers.call import normalize_scorer
from agentrl_core.scorers.code import Code, find_program, read_tests
from agentrl_core.testing import ScorerSuite
from agentrl_core.testing.scorers import score_request

SQUARE = "def f(x):\n    return x * x\n"
ASSERTS = ["assert f(2) == 4", "assert f(3) == 9"]
PAIRS = [{"input": "3\n", "output": "9"}, {"stdin": "4", "stdout": "16\n"}]


def run(program, tests=ASSERTS, **options):
    return asyncio.run(Code(**options)(score_request(program, tests=tests)))


def why(program, tests=ASSERTS, **options):
    """The first failure of a program that does not pass."""
    score = run(program, tests, **options)
    assert score.value == 0.0
    return score.details["failures"][0]


class TestConformance(ScorerSuite):
    @pytest.fixture
    def scorer(self):
        return Code(timeout_s=30)

    @pytest.fixture
    def examples(self):
        return [
            ({"answer": f"Here:\n```python\n{SQUARE}```", "tests": ASSERTS}, 1.0),
            ({"answer": "def f(x): return 4", "tests": ASSERTS}, 0.0),
        ]


def test_a_program_reads_and_prints():
    assert run("print(int(input()) ** 2)", PAIRS).value == 1.0
    assert why("print(input())", PAIRS) == "test 1: it printed '3\\n', expected '9'"
    assert why("print(9)\nraise SystemExit(1)", PAIRS) == "test 1: SystemExit: 1"
    assert run("import sys\nif __name__ == '__main__':\n    print(9)\n    sys.exit()", PAIRS[:1]).value == 1.0


def test_the_share_of_tests_passed():
    score = run("def f(x): return 4", score="share")
    assert (score.value, score.details["passed"], score.details["tests"]) == (0.5, 1, 2)
    assert score.details["failures"] == ["test 2: AssertionError: "]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("def f(:", "SyntaxError: invalid syntax"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import os\nos._exit(0)", "it ended before the test did, with exit code 0"),
        ("import sys\nsys.exit(0)", "SystemExit: 0"),
        ("import os\nos.abort()", "it ended before the test did, with"),
        ("x = bytearray(10**10)", "MemoryError"),
        ("import sys\nfor _ in range(10**6): sys.stdout.write('x' * 1000)", "it printed too much"),
        (SQUARE + "open('x', 'w').write('y' * 10**8)", "OSError: [Errno 27] File too large"),
        ("", "there is no program"),
        ("\0", "there is no program"),
        ("x" * 1_000_001, "there is no program"),
    ],
)
def test_a_program_that_breaks_fails(program, reason):
    assert reason in why(program, timeout_s=60)


@pytest.mark.parametrize(
    "program", ["while True: pass", "import time\ntime.sleep(1000)", "input = None\nwhile 1: print()"]
)
def test_a_program_that_hangs_is_ended(program):
    begun = time.monotonic()
    assert why(program, timeout_s=0.5, output_kb=10**6) == "test 1: it took too long"
    assert time.monotonic() - begun < 20


def test_the_time_is_that_of_all_tests_together():
    score = run("import time\ndef f(x): time.sleep(x)", ["f(0)", "f(1000)", "f(0)"], score="share", timeout_s=1)
    assert score.details["failures"] == ["test 2: it took too long", "test 3: not run: the time was over"]


@pytest.fixture(scope="module")
def isolated():
    missing = {"files", "calls"} - set(run(SQUARE).details["isolation"])
    if missing:
        pytest.skip(f"this machine's kernel isolates no {' and no '.join(sorted(missing))}")


@pytest.mark.parametrize(
    "attempt",
    [
        "import os\nwhile True: os.fork()",
        "import subprocess\nsubprocess.run(['true'])",
        "import threading\nthreading.Thread(target=print).start()",
        "import socket\nsocket.socket()",
        "import os\nos.kill(os.getppid(), 9)",
        "import os\nos.kill(-1, 9)",
        "open('/proc/1/environ').read()",
        pytest.param(f"open('/proc/{os.getpid()}/environ').read()", id="the environment of the tests"),
        pytest.param(f"open({__file__!r}).read()", id="a file of the tests"),
        "open('/var/tmp/planted', 'w')",
        "import os\nos.truncate('/etc/hosts', 0)",
        "import os\nopen(f'/proc/{os.getppid()}/fd/1', 'w').write('1.0')",
    ],
)
def test_a_program_cannot_reach_beyond_itself(attempt, isolated):
    assert any(word in why(attempt + "\n" + SQUARE) for word in ("Error", "can't start"))


def test_a_program_sees_none_of_our_environment_and_has_a_folder_of_its_own(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    program = f"{SQUARE}import os\nassert 'secret' not in str(os.environ)\nopen('x', 'w').close()\n"
    assert run(program + "assert os.listdir() == ['x']").value == 1.0
    score = run(program + "print(os.getcwd())", [{"output": ""}])
    folder = score.details["failures"][0].split("'")[1].removesuffix("\\n")
    assert not Path(folder).parent.exists()


@pytest.mark.parametrize(
    "forgery",
    [
        'print(\'{"why": ["", ""], "isolation": []}\')',
        "import os\nfor stream in range(3, 300):\n    try: os.write(stream, b'passed\\n')\n    except OSError: pass",
        "import os, sys\nsys.modules['__main__'].__dict__['_judge'] = lambda *_: ''",
        "import builtins\nbuiltins.AssertionError = int",
    ],
)
def test_a_verdict_is_not_what_a_program_prints(forgery):
    assert run(f"{forgery}\nimport os\nos._exit(0)").value == 0.0


def test_a_program_that_is_cancelled_ends():
    async def cancel():
        scoring = asyncio.create_task(Code()(score_request("while True: pass", tests=ASSERTS)))
        await asyncio.sleep(0.2)
        scoring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scoring

    begun = time.monotonic()
    asyncio.run(cancel())
    assert time.monotonic() - begun < 8


def test_no_report_is_no_score(monkeypatch, tmp_path):
    broken = tmp_path / "harness.py"
    broken.write_text("raise SystemExit('cannot fork')", encoding="utf-8")
    monkeypatch.setattr("agentrl_core.scorers.sandbox._HARNESS", broken)
    with pytest.raises(RuntimeError, match="gave no report; it said: cannot fork"):
        run(SQUARE)


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        (SQUARE, SQUARE),
        ("a\n```python\n1\n```\nb\n```\n2\n```", "1\n"),
        ("```py\n1\n```\n```Python3 title=x\n2\n```", "2\n"),
        ("```\n1\n```\n  ```js\n2\n  ```", "2\n"),
        ("```python\n1", "```python\n1"),
        ("```python\nx = '```'\n```", "x = '```'\n"),
    ],
)
def test_the_program_in_an_answer(answer, program):
    assert find_program(answer) == program


@pytest.mark.parametrize(
    ("tests", "problem"),
    [
        (None, "tests: expected a list"), ([], "tests: expected a list"), ({"a": 1}, "tests: expected a list"),
        (["assert ("], r"tests\.0: expected Python"), ([1], r"tests\.0: expected a text of Python"),
        (["pass", {"input": "x"}], r"tests\.1: expected a text of Python"), ([{"output": 1}], r"tests\.0: expected"),
    ],
)  # fmt: skip
def test_a_task_without_sound_tests_is_refused(tests, problem):
    with pytest.raises(ValueError, match=problem):
        Code().check_task(score_request("", tests=tests).task)


def test_one_text_is_one_test():
    assert read_tests({"tests": "assert 1"}) == [{"asserts": "assert 1"}]


@given(st.text(alphabet="`python\n 1") | st.text())
def test_any_text_holds_a_program(text):
    assert isinstance(find_program(text), str)


def test_halves_of_surrogate_pairs_and_other_odd_texts_are_judged():
    scorer = normalize_scorer(Code(), "code")
    result = asyncio.run(scorer(score_request("x = '\ud800'\n" + SQUARE, tests=ASSERTS)))
    assert result.value == 1.0
    with pytest.raises((ValueError, EpisodeError)):
        asyncio.run(scorer(score_request(SQUARE)))
