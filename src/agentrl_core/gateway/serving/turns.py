"""Spread the work of many requests over iterations of the event loop, so that none waits behind all the others."""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """Queue that lets one waiting task go on in each iteration of the event loop; for one event loop.

    The loop runs everything that is ready before it looks at its sockets again. With 256 calls ready at once, each of a
    millisecond, a request that arrives meanwhile would wait for all of them.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False
        """Whether this iteration's turn is taken."""

    async def take(self) -> None:
        """Wait for a turn, in the order of the calls; return at once if nobody took this iteration's."""
        loop = asyncio.get_running_loop()
        if self._taken:
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._taken = True
            loop.call_soon(self._give)

    def _give(self) -> None:
        """Give the next turn; it is taken until the next iteration."""
        while self._waiting:
            turn = self._waiting.popleft()
            # A client that disconnected has cancelled its own.
            if not turn.done():
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._give)
                return
        self._taken = False
