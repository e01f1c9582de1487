"""Answers to agents in workers that ask for tools."""

import asyncio

from agentrl_core.rollout.subproc.asks import Asks


def test_the_end_of_an_episode_does_not_cut_off_a_message():
    async def scenario():
        begun, room, marks, written = asyncio.Event(), asyncio.Event(), [], []

        async def write(message):
            begun.set()
            await room.wait()
            written.append(message)

        asks = Asks("7", None, marks.append, write)
        asks.begin({"op": "ask", "id": "7", "call": 0, "method": "mark", "given": {"word": "lost"}})
        await begun.wait()
        await asks.close()
        room.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert marks == ["lost"]
        assert written == [{"op": "told", "id": "7", "call": 0, "value": None}]

    asyncio.run(scenario())
