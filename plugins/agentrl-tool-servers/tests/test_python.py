"""The server `python`: what programs print, and the limits that end them."""

import asyncio
import os

import pytest

pytest.importorskip("fcntl")
from agentrl_code.sandbox import SHARED, Limits, best_level
from agentrl_tool_servers.python import describe, level_for, server


@pytest.fixture(scope="module", autouse=True)
def sandbox():
    best, why = asyncio.run(best_level(SHARED))
    if best is None:
        pytest.skip(f"this machine isolates no programs: {why}")
    yield best
    SHARED.close()


def run(connect, *programs, **options):
    async def scenario():
        async with connect(server(Limits(timeout_s=5, memory_mb=256, file_mb=1, output_kb=4))) as call:
            return [await call("run_python", code=code, **options) for code in programs]

    results = asyncio.run(scenario())
    assert not any(is_error for _, is_error in results)
    return [text for text, _ in results]


def test_a_program_prints_and_reads_its_input(connect):
    assert run(connect, "print(int(input()) * 2)", stdin="21\n") == ["42"]
    printed, failed, ended, silent = run(connect, "print('é')", "print(1)\n1/0", "raise SystemExit(3)", "x = 1")
    assert printed == "é"
    assert failed.startswith("1\n")
    assert "ZeroDivisionError" in failed
    assert failed.endswith("[exit code 1]")
    assert ended == "[exit code 3]"
    assert silent == "(the program printed nothing)"


def test_nothing_stays_from_one_call_to_the_next(connect):
    assert run(connect, "x = 1; open('a', 'w').write('x')", "import os; print(os.listdir('.'), 'x' in globals())") == [
        "(the program printed nothing)",
        "[] False",
    ]


@pytest.mark.parametrize(
    "program",
    [
        "import socket; socket.create_connection(('127.0.0.1', 1), timeout=1)",
        "import subprocess; subprocess.run(['true'], check=True)",
        "import os; os.fork()",
        "import os; os.kill(THE_TEST, 9)",
        "open('/etc/agentrl-planted', 'w')",
        "x = 'x' * 10**10",
        "open('big', 'wb').write(b'x' * 10**8)",
        "print('x' * 10**6)",
    ],
)
def test_what_a_program_must_not_do_fails(connect, program):
    program = program.replace("THE_TEST", str(os.getpid()))
    (text,) = run(connect, f"{program}\nprint('did it')")
    assert "did it" not in text
    assert "[" in text
    assert len(text) < 5000


def test_a_program_that_never_ends_is_ended(connect):
    async def scenario():
        async with connect(server(Limits(timeout_s=0.5, memory_mb=256, file_mb=1, output_kb=4))) as call:
            return await call("run_python", code="while True: pass")

    text, is_error = asyncio.run(scenario())
    assert not is_error
    assert "too long" in text


def test_the_level_is_found_and_described(sandbox):
    assert asyncio.run(level_for("auto")) == sandbox
    assert "no network" in describe(sandbox)
    assert "have the network" in describe("limits")
