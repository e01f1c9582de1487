"""Commands with a deadline, on the event loops of Python and of uvloop."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from agentrl_harbor.processes import run

uvloop = pytest.importorskip("uvloop")


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def done(request):
    """Return a function that runs a coroutine on such a loop."""

    def on_loop(work):
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(work)

    return on_loop


def sh(command, **options):
    return run(["sh", "-c", command], **{"timeout_s": 60, "limit_bytes": 1000, **options})


def test_output_status_and_input(done):
    ended = done(sh("cat; echo err >&2; exit 3", stdin=b"given "))
    assert (ended.status, ended.text, ended.cut) == (3, "given err\n", False)
    assert done(sh("echo out; echo err >&2", with_errors=False)).text == "out\n"
    assert done(sh("kill -9 $$")).status == -9


def test_large_input_that_is_not_read_does_no_harm(done):
    assert done(sh("exit 0", stdin=b"x" * 5_000_000)).status == 0
    assert done(sh("wc -c", stdin=b"x" * 5_000_000)).text.strip() == "5000000"


def test_more_output_than_wanted_is_read_away(done):
    ended = done(sh("head -c 3000000 /dev/zero; echo x >&2", limit_bytes=10))
    assert (ended.status, ended.output, ended.cut) == (0, bytes(10), True)


def test_a_command_is_killed_with_its_group_at_its_deadline(done, tmp_path):
    ended = done(sh(f"echo begun; sleep 1000 & echo $! > {tmp_path}/pid; wait", timeout_s=0.5))
    assert (ended.status, ended.text) == (None, "begun\n")
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/cwd").exists()


def test_a_process_in_the_background_does_not_hold_the_call(done, tmp_path):
    begin = time.monotonic()
    ended = done(sh(f"sleep 1000 & echo $! > {tmp_path}/pid; echo begun"))
    assert (ended.status, ended.text) == (0, "begun\n")
    assert time.monotonic() - begin < 50
    os.kill(int((tmp_path / "pid").read_text()), 9)


def test_a_cancelled_call_leaves_no_process(done, tmp_path):
    async def scenario():
        task = asyncio.create_task(sh(f"echo $$ > {tmp_path}/pid; exec sleep 1000"))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    done(scenario())
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/cwd").exists()


def test_many_commands_at_once_do_not_mix_their_pipes(done):
    async def scenario():
        ended = await asyncio.gather(*(sh(f"cat; echo {n}", stdin=f"{n} ".encode()) for n in range(60)))
        assert [item.text for item in ended] == [f"{n} {n}\n" for n in range(60)]

    done(scenario())
