"""Wrap the streams of replies so that closing one closes what it wraps, also before its first item was asked for.

The body of a generator does not run where it is closed before it has begun, so one that wraps another leaves that to
the collector.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any


class WrappedStream(AsyncGenerator[bytes, None]):
    """A stream that hands on another's items."""

    def __init__(self, stream: AsyncGenerator[bytes, None]) -> None:
        self._stream = stream

    async def asend(self, value: None) -> bytes:
        """Return the next item."""
        return await self._stream.asend(value)

    async def athrow(self, *error: Any) -> bytes:
        """Raise inside of the stream."""
        return await self._stream.athrow(*error)

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()


class StartedStream(WrappedStream):
    """A stream whose first item was taken from it already."""

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None]) -> None:
        super().__init__(rest)
        self._first: bytes | None = first

    async def asend(self, value: None) -> bytes:
        """Return the first item, then the others."""
        first, self._first = self._first, None
        return await super().asend(value) if first is None else first
