import asyncio
import contextlib
import functools
import logging
import os
import sys
import time
from pathlib import Path

import pytest
from tests import process_calls as calls

from agentrl_core.concurrency.processes import CallTimeoutError, WorkerDiedError, close_workers, pack, run_in_process
from agentrl_core.plugins.references import resolve


@pytest.fixture(autouse=True)
def no_workers_left():
    yield
    close_workers()


def call(function, *args, timeout_s=30.0, max_workers=1, **options):
    """One call after another, each by the same single worker."""
    return asyncio.run(run_in_process(function, *args, timeout_s=timeout_s, max_workers=max_workers, **options))


def ended(pid):
    """Wait until a process is gone: it may lie dead until its parent looks."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
    return False


def test_a_function_is_called_elsewhere_and_its_worker_is_kept():
    assert call(calls.add, 2, 3) == 5
    assert call(functools.partial(calls.add, 2), 4) == 6
    assert call(calls.Scorer(0.5), "abc") == 3.5
    first, second = call(calls.process_id), call(calls.process_id)
    assert first == second != os.getpid()


def test_what_the_function_raises_is_raised_here_with_its_own_traceback():
    with pytest.raises(ValueError, match=r"^bad$") as caught:
        call(calls.fail, "bad")
    assert "in fail\n" in str(caught.value.__cause__)
    with pytest.raises(RuntimeError, match="DemandingError: one two"):
        call(calls.fail_oddly)
    with pytest.raises(RuntimeError, match="SystemExit: 4"):
        call(calls.leave)
    with pytest.raises((AttributeError, RuntimeError, TypeError), match=r"pickle|lambda"):
        call(calls.give_what_cannot_be_sent)


def test_one_that_hangs_is_killed_with_what_it_started_and_the_next_call_has_a_worker(tmp_path):
    for hang in (calls.hang, calls.hang_with_a_child):
        with pytest.raises(CallTimeoutError, match="no result within 2 s; its process was killed"):
            call(hang, tmp_path / "pid", timeout_s=2.0)
        assert ended((tmp_path / "pid").read_text())
        assert call(calls.add, 1, 1) == 2


def test_what_a_worker_started_ends_with_it_however_that_ends(tmp_path):
    for end in (calls.die_with_a_child, calls.die_later_with_a_child):
        with contextlib.suppress(WorkerDiedError):
            call(end, tmp_path / "pid")
        assert ended((tmp_path / "pid").read_text()), end


def test_a_line_without_an_end_is_told_in_pieces(caplog):
    with caplog.at_level(logging.INFO):
        call(calls.say_without_end)
        with pytest.raises(WorkerDiedError, match="it printed last"):
            call(calls.die)
    longest = max(len(record.getMessage()) for record in caplog.records)
    assert 4000 < longest < 5000


def test_one_that_ends_its_process_is_told_from_one_that_fails():
    with pytest.raises(WorkerDiedError, match="exit code 3; it printed last: last words"):
        call(calls.die)
    assert call(calls.add, 1, 1) == 2


def test_a_cancelled_call_is_killed_and_one_that_waits_for_a_worker_never_begins(tmp_path):
    async def scenario():
        running = asyncio.create_task(run_in_process(calls.hang, tmp_path / "pid", timeout_s=60, max_workers=1))
        while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()):
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(run_in_process(calls.hang, tmp_path / "other", timeout_s=60, max_workers=1))
        await asyncio.sleep(0)
        for task in (waiting, running):
            task.cancel()
        results = await asyncio.gather(running, waiting, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 2
        return await run_in_process(calls.add, 1, 1, timeout_s=30, max_workers=1)

    assert asyncio.run(scenario()) == 2
    assert ended((tmp_path / "pid").read_text())
    assert not (tmp_path / "other").exists()


def test_waiting_for_a_worker_is_not_the_calls_own_time():
    async def scenario():  # all together take longer than the limit, and each a fraction of it
        return await asyncio.gather(*(run_in_process(time.sleep, 1.0, timeout_s=3.5, max_workers=1) for _ in range(4)))

    assert asyncio.run(scenario()) == [None] * 4


def test_memory_is_what_a_call_uses_beyond_its_worker():
    assert call(calls.allocate, 20, memory_mb=64) == 20 * 2**20
    with pytest.raises(MemoryError):
        call(calls.allocate, 200, memory_mb=64)
    assert call(calls.allocate, 200) == 200 * 2**20


def test_one_that_forks_answers_once():
    assert call(calls.fork) is False
    assert call(calls.add, 1, 1) == 2


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((b"a thought, printed where it does not belong",), "wrote something that is not a result"),
        ((b"\xff\xff\xff\xff" + b"\xff" * 8,), "wrote something that is not a result"),
        ((b"\x00\x00\x00\x20" + b"x" * 32,), "sent the answer of another call"),
        ((b"\x00\x00", 1, "leave"), "ended with exit code 0"),
    ],
    ids=["text", "huge", "forged", "half"],
)
def test_one_that_writes_where_answers_go_fails_alone(arguments, problem):
    with pytest.raises(WorkerDiedError, match=problem):
        call(calls.write_where_answers_go, *arguments)
    assert call(calls.add, 1, 1) == 2


def test_what_a_call_leaves_behind_is_not_taken_for_the_next_ones_answer():
    for data in (b"late", b"\x00\x00\x00\x20" + b"x" * 32):
        assert call(calls.write_where_answers_go, data, 0, "follow") == 1.0
        assert call(calls.add, 1, 1) == 2


def test_a_message_that_never_ends_is_no_result_in_time():
    with pytest.raises(CallTimeoutError, match="no result within 2 s"):
        call(calls.write_where_answers_go, b"\x00\x00", 1, "hang", timeout_s=2.0)
    assert call(calls.add, 1, 1) == 2


def test_results_that_are_too_large_or_cannot_be_read_are_errors():
    with pytest.raises(ValueError, match=r"expected a result of at most \d+ bytes, found \d+"):
        call(bytes, 100 * 2**20)
    with pytest.raises(WorkerDiedError, match=r"cannot be read here .ZeroDivisionError: read elsewhere"):
        call(calls.give_what_cannot_be_read)
    assert call(calls.add, 1, 1) == 2


def test_what_a_worker_prints_goes_to_the_log(caplog, capfd):
    with caplog.at_level(logging.INFO):
        assert call(calls.talk) == ""
        with pytest.raises(WorkerDiedError):
            call(calls.die)  # its end is known when all of its output is
    assert "a worker process printed: last words" in caplog.text
    assert capfd.readouterr() == ("", "")


def test_functions_of_a_users_file_are_found_there(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])  # the file's folder stays in it, and its name is one of the library's
    (tmp_path / "json.py").write_text("def double(x): return 2 * x\n")
    assert call(resolve("json.py:double", [tmp_path]).value, 4) == 8


def test_what_cannot_be_sent_is_named():
    with pytest.raises(TypeError, match=r"test_what_cannot_be_sent_is_named.<locals>.<lambda> cannot be sent"):
        pack(lambda: None)

    def scorer():
        return 1.0

    scorer.__module__ = "__main__"
    with pytest.raises(TypeError, match="scorer is defined in the script that was started"):
        pack(functools.partial(scorer))


def test_closing_ends_running_calls_and_later_ones_have_new_workers(tmp_path):
    async def scenario():
        running = asyncio.create_task(run_in_process(calls.hang, tmp_path / "pid", timeout_s=60, max_workers=1))
        while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()):
            await asyncio.sleep(0.01)
        close_workers()
        with pytest.raises(WorkerDiedError, match="SIGKILL"):
            await running

    asyncio.run(scenario())
    assert call(calls.add, 1, 1) == 2
