"""Wrap byte streams of replies so that closing the wrapper always closes the wrapped stream.

An async generator that wraps another cannot do this: closed before its first item, its body never runs, `finally`
included, and the wrapped generator stays open until garbage collection. Its generation would go on in the engine.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any


class WrappedStream(AsyncGenerator[bytes, None]):
    """Stream that passes on the items of another and closes it."""

    def __init__(self, stream: AsyncGenerator[bytes, None]) -> None:
        self._stream = stream

    async def asend(self, value: None) -> bytes:
        """Return the next item."""
        return await self._stream.asend(value)

    async def athrow(self, *error: Any) -> bytes:
        """Raise an exception inside the wrapped stream."""
        return await self._stream.athrow(*error)

    async def aclose(self) -> None:
        """Close the wrapped stream."""
        await self._stream.aclose()


class StartedStream(WrappedStream):
    """Stream whose first item was already taken from it; yields that item again, then the rest."""

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None]) -> None:
        super().__init__(rest)
        self._first: bytes | None = first

    async def asend(self, value: None) -> bytes:
        """Return the first item, then the others."""
        # Taken out, so that it is sent once and not kept for as long as the stream lasts.
        first, self._first = self._first, None
        return await super().asend(value) if first is None else first
