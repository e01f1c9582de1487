"""Sessions: an answer is never taken for that to another message."""

import asyncio

import pytest

from agentrl_core.errors import EnvironmentLostError
from agentrl_openenv.session import Session


def test_a_message_that_was_given_up_ends_the_session(server, serve):
    async def scenario():
        session = Session(f"{url}/guess", 10.0)
        await session.open()
        try:
            await session.reset(seed=3)
            server.misbehave = "hang"
            step = asyncio.create_task(session.step({"message": "1"}))
            while not session._is_unanswered:
                await asyncio.sleep(0)
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step
            server.misbehave = ""
            with pytest.raises(EnvironmentLostError, match="has not answered an earlier message"):
                await session.step({"message": "3"})
        finally:
            await session.close()

    url = serve(server.app())
    asyncio.run(scenario())
