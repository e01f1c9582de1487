"""The scorer: programs in answers, tests of tasks, levels of isolation, and what is no score."""

import asyncio
import os
import sys
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentrl_code.scorer
from agentrl_code.inside.calls import filter_lines
from agentrl_code.inside.confine import reachable
from agentrl_code.reading import read_tests
from agentrl_code.sandbox import Limits, RefusedLevelError, Sandboxes, SandboxLostError, best_level, own_folder
from agentrl_code.scorer import Code, find_program
from agentrl_code.verdicts import run_tests
from agentrl_core.config.sampling_sections import GatewayConfig
from agentrl_core.errors import ConfigError
from agentrl_core.scorers.call import normalize_scorer
from agentrl_core.scorers.table import check_scorers
from agentrl_testing import ScorerSuite
from agentrl_testing.scorers import score_request

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no forks")
SQUARE = "def f(x):\n    return x * x\n"
ASSERTS = ["assert f(2) == 4", "assert f(3) == 9"]
LEVEL = "confined" if sys.platform == "linux" else "limits"
LIMITS = Limits(timeout_s=20, memory_mb=512, file_mb=1, output_kb=1)
PAIRS = [{"input": "3\n", "output": "9"}, {"stdin": "4", "stdout": "16\n"}]


def run(program, tests=ASSERTS, **options):
    return asyncio.run(Code(**options)(score_request(program, tests=tests)))


class TestConformance(ScorerSuite):
    @pytest.fixture
    def scorer(self):
        return Code(timeout_s=30)

    @pytest.fixture
    def examples(self):
        return [
            ({"answer": f"Here:\n```python\n{SQUARE}```", "tests": ASSERTS}, 1.0),
            ({"answer": "print(int(input()) ** 2)", "tests": PAIRS}, 1.0),
            ({"answer": "def f(x): return 4", "tests": ASSERTS}, 0.0),
        ]


def test_the_share_of_tests_passed():
    score = run("def f(x): return 4", score="share")
    assert (score.value, score.details["passed"], score.details["tests"]) == (0.5, 1, 2)
    assert score.details["failures"] == ["test 2: AssertionError"]


def test_only_a_newline_ends_a_line_of_an_output():
    ends = ["\v", "\f", "\x1c", "\x85", "\u2028", "\r"]
    tests = [{"input": end, "output": "a\nb"} for end in ["\n", *ends]] + [{"input": "\r\n", "output": "a\nb\n\n"}]
    program = "import sys\nprint('a' + sys.stdin.buffer.read().decode() + 'b ')"
    score = run(program, tests, score="share", timeout_s=30)
    assert score.details["passed"] == 2
    assert not any(failure.startswith(("test 1:", "test 8:")) for failure in score.details["failures"])


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("", "the answer has no program"),
        ("pass\0", "the program contains a null character"),
        ("x" * 1_000_001, "the program has 1,000,001 characters; at most 1,000,000 are run"),
    ],
)
def test_no_program_is_wrong(program, why):
    score = run(program)
    assert (score.value, score.details["failures"]) == (0.0, [why])


def test_the_time_is_that_of_all_tests_together():
    program = "import time\ndef f(x): time.sleep(x)"
    tests = ["assert f(0) is None", "f(1000)", "f(0)"]
    score = run(program, tests, score="share", timeout_s=4)
    assert score.details["failures"] == [
        "test 2: it took too long",
        "test 3: not run: the tests before it used up timeout_s",
    ]


def test_a_program_sees_none_of_our_environment_and_has_a_folder_of_its_own(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    program = "import os\nopen('x', 'w').close()\nprint('secret' in str(os.environ), os.listdir(), os.getppid())"
    assert run(program, [{"output": "False ['x'] 0"}], isolation="full").value == 1.0


def test_what_numpy_makes_is_compared_as_the_numbers_that_it_holds():
    pytest.importorskip("numpy")
    program = "import numpy as np\ndef f(x): return np.arange(x)\ndef g(x): return np.float32(x)"
    tests = ["assert list(f(3)) == [0, 1, 2]\nassert f(3).sum() == 3\nassert f(3) == [0, 1, 2]", "assert g(2) == 2.0"]
    assert run(program, tests, packages=True).value == 1.0
    assert run(program, ["assert f(3) == [0, 1, 3]"], packages=True).value == 0.0


def test_installed_packages_are_there_on_request():
    program = "import attrs\nprint(9)"
    assert "ModuleNotFoundError" in run(program, [{"output": "9"}]).details["failures"][0]
    assert run(program, [{"output": "9"}], packages=True).value == 1.0


def test_a_program_that_is_cancelled_ends(own_sandboxes):
    async def cancel():
        test = read_tests({"tests": PAIRS})
        running = run_tests("while True: pass", test, LIMITS, level=LEVEL, go_on=False, sandboxes=own_sandboxes)
        scoring = asyncio.create_task(running)
        while not (programs := started()):
            await asyncio.sleep(0.01)
        scoring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scoring
        return programs

    def started():
        """The program and what watches it."""
        process = own_sandboxes.process_id
        found = psutil.Process(process).children(recursive=True) if process else []
        return found if len(found) > 1 else []

    _, left = psutil.wait_procs(asyncio.run(cancel()), timeout=20)
    assert left == []


def test_what_was_in_force_is_told():
    score = run(SQUARE, isolation="confined")
    assert (score.value, score.details["isolation"]) == (1.0, "confined")


def test_limits_alone_bound_a_program(own_sandboxes):
    tests = read_tests({"tests": PAIRS})
    program = "x = bytearray(10**10)"
    limited = run_tests(program, tests, LIMITS, level="limits", go_on=False, sandboxes=own_sandboxes)
    if os.geteuid() == 0 and not reachable(os.__file__):
        with pytest.raises(RefusedLevelError, match="runs programs as the user nobody, who cannot read Python's"):
            asyncio.run(limited)
    else:
        assert asyncio.run(limited) == ["MemoryError"]


def notes(**options):
    """Return the notes that the scorer gives before a run starts."""
    return check_scorers([normalize_scorer(Code(**options), "code")], GatewayConfig())


@pytest.mark.parametrize(
    ("best", "asked", "told"),
    [
        (
            None,
            "auto",
            r"cannot be isolated here \(no such kernel\); to run them .* isolation: limits}}` and use the scorer",
        ),
        (None, "confined", "isolation: limits"),
        ("confined", "full", r"cannot be fully isolated here \(no such kernel\); .*isolation: confined"),
    ],
)
def test_a_machine_that_cannot_isolate_stops_the_run(monkeypatch, best, asked, told):
    monkeypatch.setattr(agentrl_code.scorer, "_found", {"best": (best, "no such kernel")})
    with pytest.raises(ConfigError, match=told):
        notes(isolation=asked)


def test_a_weaker_level_is_told_before_the_run(monkeypatch):
    monkeypatch.setattr(agentrl_code.scorer, "_found", {"best": ("confined", "no namespaces")})
    assert notes() == [
        "scorer 'code': programs run with isolation 'confined'; 'full' is not available here: no namespaces"
    ]
    assert notes(isolation="confined") == []
    monkeypatch.setattr(agentrl_code.scorer, "_found", {"best": ("full", "")})
    assert notes() == notes(isolation="full") == []


def test_limits_that_root_cannot_set_stop_the_run():
    if os.geteuid() == 0 and not reachable(os.__file__):
        with pytest.raises(ConfigError, match=r"cannot run with isolation 'limits' here: root .* cannot read Python's"):
            notes(isolation="limits")
    else:
        warning = "scorer 'code': isolation 'limits' does not protect this machine from programs"
        assert notes(isolation="limits") == [warning]


def test_a_refused_level_stops_the_run(monkeypatch):
    class Refusing(Sandboxes):
        async def run(self, *_args, **_options):
            raise RefusedLevelError("nobody cannot read Python")

    monkeypatch.setattr(agentrl_code.scorer, "SHARED", Refusing())
    with pytest.raises(ConfigError, match="isolation 'limits' here: nobody cannot read Python"):
        notes(isolation="limits")


def test_windows_is_told_at_once(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ConfigError, match="not available on Windows; use Linux"):
        asyncio.run(Code(isolation="limits").check(gateway_url=None))


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_another_system_isolates_nothing(monkeypatch, system):
    monkeypatch.setattr(sys, "platform", system)
    level, why = asyncio.run(best_level(Sandboxes()))
    assert level is None
    assert "isolation needs Linux" in why


@pytest.fixture
def broken(tmp_path):
    """Make sandboxes whose process does something else."""
    made = []

    def make(code):
        script = tmp_path / "zygote.py"
        script.write_text(code, encoding="utf-8")
        made.append(Sandboxes((sys.executable, "-S", str(script))))
        return made[-1]

    yield make
    for sandboxes in made:
        sandboxes.close()


@pytest.fixture
def real():
    """Sandboxes of a process of their own."""
    sandboxes = Sandboxes()
    yield sandboxes
    sandboxes.close()


def test_a_process_that_makes_no_sandboxes_is_no_score(broken):
    sandboxes = broken("raise SystemExit(0)")
    with pytest.raises(SandboxLostError, match=r"without a report|does not start"):
        asyncio.run(
            run_tests("pass", read_tests({"tests": PAIRS}), LIMITS, level="full", go_on=False, sandboxes=sandboxes)
        )


def test_a_sandbox_that_ends_with_its_program_is_tried_again_then_wrong(broken, tmp_path):
    """As when memory is short: a program must not be able to have no score in place of 0."""
    sandboxes = broken(
        "import os, socket, sys\n"
        "control = socket.socket(fileno=int(sys.argv[1]))\n"
        f"seen = open({str(tmp_path / 'seen')!r}, 'a')\n"
        "while True:\n"
        "    message, descriptors, _, _ = socket.recv_fds(control, 1, 2)\n"
        "    if not message: break\n"
        "    print('x', file=seen, flush=True)\n"
        "    with socket.socket(fileno=os.dup(descriptors[0])) as job: job.recv(1 << 16)\n"
        "    os.write(descriptors[0], b'\\0\\0\\0\\x0f{\"ready\": true}')\n"
        "    for descriptor in descriptors: os.close(descriptor)\n",
    )
    tests = read_tests({"tests": PAIRS[:1]})
    (why,) = asyncio.run(run_tests("pass", tests, LIMITS, level="full", go_on=False, sandboxes=sandboxes))
    assert "the sandbox ended without a report" in why
    assert (tmp_path / "seen").read_text().split() == ["x", "x"]


def test_a_process_that_was_killed_is_started_again(real):
    async def go():
        with own_folder("confined") as folder:
            return (await real.run("script", "print(9)", LIMITS, "confined", folder=folder)).out

    assert asyncio.run(go()) == "9\n"
    os.kill(real.process_id, 9)
    os.waitid(os.P_PID, real.process_id, os.WEXITED | os.WNOWAIT)
    assert asyncio.run(go()) == "9\n"


@pytest.mark.parametrize("shared_files", [False, True])
@pytest.mark.parametrize("machine_type", ["x86_64", "aarch64"])
def test_the_filter_ends_and_never_jumps_out_of_itself(machine_type, shared_files):
    lines = filter_lines(machine_type, shared_files=shared_files)
    returns = 0x06
    for place, (operation, if_true, if_false, _) in enumerate(lines):
        assert 0 <= if_true < 256
        assert 0 <= if_false < 256
        if operation != returns:
            assert place + 1 + max(if_true, if_false) < len(lines)
    assert lines[-1][0] == returns
    assert len(lines) < 4096


def evaluate(lines, machine_type, number, *arguments):
    """Classic BPF, slowly."""
    audit = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine_type]
    data = {0: number, 4: audit} | {16 + 8 * index: value & 0xFFFFFFFF for index, value in enumerate(arguments)}
    place, held = 0, 0
    while True:
        operation, if_true, if_false, value = lines[place]
        place += 1
        if operation == 0x20:
            held = data.get(value, 0)
        elif operation == 0x54:
            held &= value
        elif operation == 0x06:
            return value == 0x7FFF0000
        else:
            place += if_true if (held == value if operation == 0x15 else held >= value) else if_false


@pytest.mark.parametrize(
    ("name", "x86_64", "aarch64", "arguments", "allowed"),
    [
        ("read", 0, 63, (), True), ("exit_group", 231, 94, (), True), ("kill", 62, 129, (), False),
        ("execve", 59, 221, (), False), ("a thread", 56, 220, (0x3D0F00,), True), ("a fork", 56, 220, (17,), False),
        ("F_GETFL", 72, 25, (0, 3), True), ("F_SETOWN", 72, 25, (0, 8), False), ("F_SETSIG", 72, 25, (0, 10), False),
        ("O_NONBLOCK", 72, 25, (0, 4, 0x800), True), ("O_ASYNC", 72, 25, (0, 4, 0x2000), False),
        ("isatty", 16, 29, (0, 0x5401), True), ("TIOCSTI", 16, 29, (0, 0x5412), False),
        ("PR_SET_NAME", 157, 167, (15,), True), ("PR_SET_PDEATHSIG", 157, 167, (1,), False),
        ("its own limits", 302, 261, (0,), True), ("another's limits", 302, 261, (1,), False),
        ("a stream", 53, 199, (1, 0x80801), True), ("a datagram", 53, 199, (1, 2), False),
        ("reading", 257, 56, (0, 0, 0), True), ("cutting", 257, 56, (0, 0, 0x241), True),
        ("cutting what is read", 257, 56, (0, 0, 0x200), False), ("x32", 0x40000000, 0x40000000, (), False),
        ("renaming", 316, 276, (0, 0, 0, 0, 1), True), ("a whiteout", 316, 276, (0, 0, 0, 0, 4), False),
        ("memory", 9, 222, (0, 4096, 3, 0x22, -1), True), ("shared memory", 9, 222, (0, 4096, 3, 0x21, -1), True),
        ("a library", 9, 222, (0, 4096, 1, 0x2, 3), True), ("a file's own pages", 9, 222, (0, 4096, 1, 0x1, 3), False),
        ("chmod", 90, 53, (), False), ("socket", 41, 198, (), False), ("clone3", 435, 435, (), False),
    ],
)  # fmt: skip
def test_the_filter_on_both_architectures(name, x86_64, aarch64, arguments, allowed):
    for machine_type, number in (("x86_64", x86_64), ("aarch64", aarch64)):
        assert evaluate(filter_lines(machine_type, shared_files=False), machine_type, number, *arguments) is allowed, (
            name
        )


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
        (["assert ("], r"tests\.0: expected Python code"), ([1], r"tests\.0: expected Python code or"),
        (["f()", {"input": "x"}], r"tests\.1: expected Python code or"), ([{"output": 1}], r"tests\.0: expected"),
        (["assert sum([1]) == 1"], r"tests\.0: the test uses no name of the answer; .* `from answer import NAME`"),
        (["assert np.allclose(f(3), 9)"], r"does not import `np`, so the answer could define it; fix: add `import nu"),
        (["assert f(3) == pytest.approx(9)"], r"does not import `pytest`, so .*; fix: add `import pytest` to the test"),
        (["def test_f():\n    assert f(3) == 9"], r"tests\.0: the test only defines functions or classes, so it would"),
        (["import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(3), 9)"], "only defines"),
        (["if __name__ == '__main__':\n    assert f(3) == 9"], "the test only defines functions"),
        (["assert Counter(f()) == {}"], r"does not import `Counter`, so .*; fix: add `from collections import Counter`"),
        (["assert f(2) == sqrt(4)"], "fix: add `from math import sqrt` to the test"),
        (["with redirect_stdout(x): f()"], "the test uses `redirect_stdout`, but it runs in another process"),
        (["import sys\nf()\nassert sys.stdout"], "the test uses `stdout`, but it runs in another process"),
    ],
)  # fmt: skip
def test_a_task_without_sound_tests_is_refused(tests, problem):
    with pytest.raises(ValueError, match=problem):
        Code().check_task(score_request("", tests=tests).task)


def test_one_text_is_one_test():
    assert read_tests({"tests": "assert f()"}) == [{"asserts": "assert f()"}]


def test_the_end_of_a_long_answer_is_found_at_once():
    """Ten thousand times as long would take a hundred million times as long, if its parts were tried in turns."""
    for text in ("```" + "a" * 10**6, "```" + " " * 10**6, " " * 10**6 + "```"):
        assert find_program(text) == text
    assert find_program("```a\n1\n```\n" * 10**5) == "1\n"


@given(st.text(alphabet="`python\n 1") | st.text())
def test_any_text_holds_a_program(text):
    assert isinstance(find_program(text), str)


def test_halves_of_surrogate_pairs_and_other_odd_texts_are_judged():
    assert run("x = '\ud800'\n" + SQUARE).value == 1.0
    assert run("print(input())", [{"input": "\ud800", "output": "x"}]).value == 0.0


def test_nothing_of_it_is_needed_beside_the_standard_library():
    """The process that makes sandboxes has none of the trainer's packages."""
    folder = Path(agentrl_code.scorer.__file__).parent / "inside"
    for path in folder.glob("*.py"):
        assert "agentrl_core" not in path.read_text(encoding="utf-8")
        assert "import attrs" not in path.read_text(encoding="utf-8")
