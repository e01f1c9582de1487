"""Bound the memory of large request bodies that are being read, in total and per client.

A body without room is not read. TCP's back-pressure then makes its client wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import attrs

from agentrl_core.errors import RequestError
from agentrl_core.gateway.serving.web import MAX_BODY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

UNCOUNTED_BYTES = 2**20
"""Largest body that needs no room: the limit on connections bounds the memory of these."""


@attrs.frozen(kw_only=True)
class RoomSize:
    """Limits of the memory for large bodies."""

    total_bytes: int = 32 * MAX_BODY_BYTES
    """Size of all bodies together."""
    client_bytes: int = 4 * MAX_BODY_BYTES
    """Size of the bodies of one client: of one key, or of one token in the URL."""
    wait_s: float = 20.0
    """Longest wait of a body for room; a third of the time that a request may take to arrive."""


class BodyRoom:
    """Memory budget of large bodies, from their arrival until they are parsed.

    Belongs to one event loop, but the function that `take` returns may be called on any thread.
    """

    def __init__(self, size: RoomSize) -> None:
        self._size = size
        self._taken: Counter[bytes] = Counter()
        """Bytes taken, by client."""
        self._waiting: list[tuple[bytes, int, asyncio.Future[None]]] = []
        """Client, size and future of each body that waits, in order of arrival."""

    async def take(self, client: bytes, num_bytes: int) -> Callable[[], None]:
        """Wait for room for a body, and return the function that frees it again; it may be called more than once.

        `RequestError` (503) if there is no room in time.
        """
        if num_bytes <= UNCOUNTED_BYTES:
            return _nothing
        if self._fits(client, num_bytes):
            self._taken[client] += num_bytes
        else:
            await self._wait(client, num_bytes)
        # `held` is emptied by the first call of `free`, so that later calls do nothing.
        loop, held = asyncio.get_running_loop(), [num_bytes]

        def free() -> None:
            loop.call_soon_threadsafe(self._give_back, client, held)

        return free

    async def _wait(self, client: bytes, num_bytes: int) -> None:
        room = asyncio.get_running_loop().create_future()
        entry = (client, num_bytes, room)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(self._size.wait_s):
                await room
        except TimeoutError:
            # Else the room was given in the same turn of the loop in which the wait ended, and is kept.
            if not room.done() or room.cancelled():
                raise RequestError(
                    503,
                    "no_room",
                    f"other large bodies used all memory reserved for them for {self._size.wait_s:g} s; try again",
                    retry_after_s=1.0,
                ) from None
        except asyncio.CancelledError:
            # The room was just given to a body that will not use it.
            if room.done() and not room.cancelled():
                self._give_back(client, [num_bytes])
            raise
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    def _fits(self, client: bytes, num_bytes: int) -> bool:
        fits = self._taken.total() + num_bytes <= self._size.total_bytes
        return fits and self._taken[client] + num_bytes <= self._size.client_bytes

    def _give_back(self, client: bytes, held: list[int]) -> None:
        if not held:
            return
        self._taken[client] -= held.pop()
        if not self._taken[client]:
            del self._taken[client]
        # All that wait are tried: a body that does not fit must not hold up a smaller one, or another client's.
        for entry in tuple(self._waiting):
            waiting_client, num_bytes, room = entry
            if not room.done() and self._fits(waiting_client, num_bytes):
                self._waiting.remove(entry)
                self._taken[waiting_client] += num_bytes
                room.set_result(None)


def _nothing() -> None:
    """Do nothing: a body that took no room frees none."""
