"""Bound the memory that bodies of requests take while they are read, in all and for one client.

A body that finds no room stays in its client's hands: what is not read fills the connection, and the client waits.
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
"""A body up to this size needs no room: the number of connections bounds those."""


@attrs.frozen(kw_only=True)
class RoomSize:
    """Sizes of the room for large bodies."""

    total_bytes: int = 32 * MAX_BODY_BYTES
    client_bytes: int = 4 * MAX_BODY_BYTES
    """Of bodies with one key, or one token in their URLs."""
    wait_s: float = 20.0
    """Longest wait of a body for room; a third of the time that a request may take to arrive."""


class BodyRoom:
    """The room that large bodies have until they are parsed. For one event loop, but `free` may be called anywhere."""

    def __init__(self, size: RoomSize) -> None:
        self._size = size
        self._taken: Counter[bytes] = Counter()
        """Bytes by client."""
        self._waiting: list[tuple[bytes, int, asyncio.Future[None]]] = []
        """In order of arrival."""

    async def take(self, client: bytes, num_bytes: int) -> Callable[[], None]:
        """Wait for room for a body; returns what frees it again, which may be called more than once.

        `RequestError` (503) where there is none in time.
        """
        if num_bytes <= UNCOUNTED_BYTES:
            return _nothing
        if self._fits(client, num_bytes):
            self._taken[client] += num_bytes
        else:
            await self._wait(client, num_bytes)
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
            if not room.done() or room.cancelled():  # else it became free in the same turn of the loop
                raise RequestError(
                    503,
                    "no_room",
                    f"other large bodies took all room for {self._size.wait_s:g} s; try again",
                    retry_after_s=1.0,
                ) from None
        except asyncio.CancelledError:
            if room.done() and not room.cancelled():  # it had just become free
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
        for entry in tuple(self._waiting):
            waiting_client, num_bytes, room = entry
            if not room.done() and self._fits(waiting_client, num_bytes):
                self._waiting.remove(entry)
                self._taken[waiting_client] += num_bytes
                room.set_result(None)


def _nothing() -> None:
    """Free the room of a body that took none."""
