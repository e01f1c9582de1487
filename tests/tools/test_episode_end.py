"""The end of an episode: what still runs is cancelled, and sessions that open too late are closed."""

import asyncio
import threading

from tests.tools.conftest import FakeServer

from agentrl_core.types import ToolOutcome


def test_a_call_from_another_thread_ends_with_the_episode(in_episode):
    called, threads, errors = asyncio.Event(), [], []

    async def never(name, arguments):
        called.set()
        await asyncio.Event().wait()

    async def leave_it(tools):
        def work():
            try:
                asyncio.run(tools.call("echo", {"text": "x"}))
            except BaseException as error:  # noqa: BLE001
                errors.append(type(error))

        threads.append(threading.Thread(target=work, daemon=True))
        threads[0].start()
        await called.wait()
        await tools.close()
        await asyncio.to_thread(threads[0].join, 10)

    done = in_episode(leave_it, FakeServer(answer=never))
    assert not threads[0].is_alive()
    assert [row.outcome for row in done.rows] == [ToolOutcome.CANCELLED]
    assert errors == [asyncio.CancelledError]


def test_a_session_that_opens_after_the_end_is_closed(in_episode):
    opening = asyncio.Event()

    async def stubborn(_):
        opening.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # goes on, as a library may that swallows its cancellation

    async def give_up(tools):
        listing = asyncio.create_task(tools.specs())
        await opening.wait()
        listing.cancel()

    server = FakeServer(on_open=stubborn)
    in_episode(give_up, server)
    assert (server.opened, server.closed) == (["r0"], ["r0"])
