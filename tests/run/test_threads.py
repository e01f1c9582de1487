"""The agents' event loop outlives what agents do to it, and nobody waits for it for ever."""

import asyncio
import concurrent.futures
import contextlib
import gc
import importlib.util
import re
import socket
import subprocess
import sys
import threading
import time

import pytest

from agentrl_core.concurrency.threads import DaemonExecutor
from agentrl_core.errors import RunError
from agentrl_core.run import threads
from agentrl_core.run.threads import LoopThread


@pytest.fixture
def make_loop():
    """`make_loop(**options)`: a loop that is closed at the end of the test."""
    with contextlib.ExitStack() as closing:

        def make(**options):
            loop = LoopThread("agents", **{"workers": 2} | options)
            closing.callback(loop.close)
            return loop

        yield make


@pytest.fixture
def release():
    """What hung functions of a test wait for; set at its end."""
    event = threading.Event()
    yield event
    event.set()


async def answer():
    return 42


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_the_loop_outlives_what_a_background_task_raises(make_loop, error, caplog):
    loop = make_loop()

    async def background():
        raise error

    loop.start(background())
    assert loop.run(answer()) == 42
    assert "goes on" in caplog.text


def test_what_a_background_task_raises_goes_to_the_log_not_to_the_terminal(make_loop, caplog, capfd):
    async def agent():
        async def fail():
            raise ValueError("unseen")

        task = asyncio.create_task(fail())
        await asyncio.wait({task})

    loop = make_loop()
    with caplog.at_level("WARNING", logger="agentrl_core"):
        loop.run(agent())
        gc.collect()
        loop.run(asyncio.sleep(0))
    assert [record.name for record in caplog.records] == ["agentrl_core.run.threads"]
    assert "unseen" in caplog.text
    assert capfd.readouterr().err == ""


def test_the_loop_outlives_an_agent_that_stops_it(make_loop):
    loop = make_loop()

    async def agent():
        asyncio.get_running_loop().stop()

    loop.run(agent())
    assert loop.run(answer()) == 42


def test_a_thread_that_has_ended_is_not_waited_for(make_loop):
    loop = make_loop()
    loop.close()
    with pytest.raises(RunError, match="'agents' has ended"):
        loop.run(answer())


def test_close_leaves_an_agent_behind_that_ignores_its_cancellation(make_loop, caplog):
    loop = make_loop()
    running = threading.Event()

    async def immortal():
        running.set()
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    loop.start(immortal())
    assert running.wait(timeout=30)
    loop.close(grace_s=0.05)
    assert "immortal" in caplog.text
    assert "abandoned" in caplog.text


def test_a_blocked_loop_is_told_once_and_raises_with_the_line_that_blocks(make_loop, release, caplog):
    notices, told = [], threading.Event()

    def notice(message):
        notices.append(message)
        told.set()

    def blocking_call():
        release.wait(timeout=60)

    async def blocking_agent():
        blocking_call()

    loop = make_loop(notice=notice, patience_s=1.2)
    with pytest.raises(RunError, match=r"test_threads\.py:\d+ \(in blocking_call\) has blocked .* use await"):
        loop.run(blocking_agent())
    assert told.wait(timeout=30)
    loop.cpu_seconds()  # does not wait for ever either
    loop.close(grace_s=0.05)
    assert len(notices) == 1
    assert "(in blocking_call) blocks the event loop" in notices[0]
    assert re.search(r", called by \S*test_threads\.py:\d+ \(in blocking_agent\);", notices[0])
    assert "a plain `def run`" in notices[0]
    assert "`rollout.agent.mode: subproc`" in notices[0]
    assert caplog.text.count("Stack:") == 1
    assert "\n    release.wait(timeout=60)" in caplog.text


def test_many_short_turns_together_are_no_agents_fault(make_loop):
    notices = []
    loop = make_loop(notice=notices.append)

    async def agent():
        await asyncio.sleep(0)
        time.sleep(0.1)

    async def agents():
        await asyncio.gather(*(agent() for _ in range(20)))

    loop.run(agents())
    assert notices == []


def test_a_loop_that_waits_is_not_blocked(make_loop):
    notices = []
    loop = make_loop(notice=notices.append, patience_s=1.4)  # a busy machine may turn the loop late once or twice
    assert loop.run(asyncio.sleep(2.2, 42)) == 42
    assert notices == []


def test_the_interpreter_ends_while_a_worker_hangs():
    code = (
        "import asyncio, threading\n"
        "from agentrl_core.run.threads import LoopThread\n"
        "loop, begun = LoopThread('agents', workers=1), threading.Event()\n"
        "def hang():\n"
        "    begun.set()\n"
        "    threading.Event().wait()\n"
        "async def agent():\n"
        "    await asyncio.to_thread(hang)\n"
        "loop.start(agent())\n"
        "begun.wait()\n"
        "loop.close()\n"
        "print('closed', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")


def test_the_interpreter_ends_although_an_agent_catches_everything():
    code = (
        "import asyncio, threading\n"
        "from agentrl_core.run.threads import LoopThread\n"
        "loop, begun = LoopThread('agents', workers=1), threading.Event()\n"
        "async def agent():\n"
        "    begun.set()\n"
        "    while True:\n"
        "        try:\n"
        "            await asyncio.sleep(0.01)\n"
        "        except BaseException:\n"
        "            pass\n"
        "kept = loop.start(agent())\n"
        "begun.wait()\n"
        "loop.close(grace_s=0.05)\n"
        "print('closed', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "closed\n")
    assert done.stderr.count("\n") == 1
    assert "is abandoned" in done.stderr


def test_the_executor_has_no_more_threads_than_workers_and_uses_them_again(release):
    executor = DaemonExecutor(2, name="pool")
    hanging = executor.submit(release.wait)
    names = set()
    for _ in range(20):
        names.add(executor.submit(lambda: threading.current_thread().name).result(timeout=30))
    assert names <= {"pool-0", "pool-1"}
    assert threading.current_thread().name not in names
    release.set()
    assert hanging.result(timeout=30)
    executor.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(time.time)


def test_the_executor_passes_errors_on_and_drops_what_was_cancelled(release):
    executor = DaemonExecutor(1, name="pool")

    def fail():
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        executor.submit(fail).result(timeout=30)
    executor.submit(release.wait)
    waiting = executor.submit(fail)
    assert waiting.cancel()
    release.set()
    executor.shutdown()
    assert concurrent.futures.wait([waiting], timeout=0).done == {waiting}


def test_windows_has_the_standard_loop_in_place_of_uvloop(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)  # as where it is not installed
    spec = importlib.util.spec_from_file_location("threads_on_windows", threads.__file__)
    module = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as windows:
        windows.setattr(sys, "platform", "win32")
        spec.loader.exec_module(module)
    with contextlib.closing(module.LoopThread("agents", workers=1)) as loop:
        assert loop.run(asyncio.sleep(0, "it runs")) == "it runs"


def test_short_waits_of_a_blocking_client_are_told_with_the_line(make_loop):
    """No wait is long enough to block the loop, but looks at random times find one after the other."""
    notices, told = [], threading.Event()

    def notice(message):
        notices.append(message)
        told.set()

    def serve(connection):
        while not told.wait(timeout=0.1):
            connection.sendall(b"reply\n")

    async def agent(replies):
        while not told.is_set():
            replies.readline()
            await asyncio.sleep(0)

    client, server = socket.socketpair()
    with client, server, client.makefile("rb") as replies:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        server.sendall(b"reply\n")
        loop = make_loop(notice=notice)
        work = asyncio.run_coroutine_threadsafe(agent(replies), loop._loop)
        assert told.wait(timeout=60)
        server.sendall(b"reply\n")  # the last one that the agent waits for
        work.result(timeout=30)
    assert len(notices) == 1
    assert "(in agent) blocks the event loop that all agents share" in notices[0]
