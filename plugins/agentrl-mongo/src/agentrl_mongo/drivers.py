"""Seam between the store and its two drivers, motor and `pymongo.AsyncMongoClient`, whose calls differ in few places.

Both are bound to the event loop that created them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DriverName: TypeAlias = Literal["motor", "pymongo"]


class Driver(Protocol):
    """A client of one driver."""

    client: Any

    async def aggregate(self, collection: Any, pipeline: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Run an aggregation and return its documents."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class Motor:
    """motor: its calls run on threads; it is no longer developed, but in wide use."""

    def __init__(self, url: str, **options: Any) -> None:
        from motor.motor_asyncio import AsyncIOMotorClient

        self.client: Any = AsyncIOMotorClient(url, io_loop=asyncio.get_running_loop(), **options)

    async def aggregate(self, collection: Any, pipeline: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Run an aggregation and return its documents."""
        found: list[dict[str, Any]] = await collection.aggregate(pipeline).to_list(None)
        return found

    async def close(self) -> None:
        """Close all connections."""
        self.client.close()


class PyMongo:
    """`pymongo.AsyncMongoClient`, the successor of motor."""

    def __init__(self, url: str, **options: Any) -> None:
        from pymongo import AsyncMongoClient

        self.client: Any = AsyncMongoClient(url, **options)

    async def aggregate(self, collection: Any, pipeline: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Run an aggregation and return its documents."""
        cursor = await collection.aggregate(pipeline)
        found: list[dict[str, Any]] = await cursor.to_list(None)
        return found

    async def close(self) -> None:
        """Close all connections."""
        await self.client.close()


DRIVERS: Mapping[DriverName, type[Motor | PyMongo]] = {"motor": Motor, "pymongo": PyMongo}
