"""Writes that may be repeated or cancelled, and lists of ids that fit into one command."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure, WriteConcernError, WTimeoutError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

    from agentrl_mongo.documents import Document

_T = TypeVar("_T")

_DUPLICATE_KEY = 11000
_AT_ONCE = 1000
"""Most ids in one query: a command has at most 48 MB."""


def in_slices(items: Sequence[_T]) -> Iterator[list[_T]]:
    """Cut a list into parts that one command takes."""
    for start in range(0, len(items), _AT_ONCE):
        yield list(items[start : start + _AT_ONCE])


async def inserted(collection: Any, document: Document) -> bool:
    """Insert a document; return False if another one with its key is there.

    The document that is there may be the same, if the connection broke after an earlier try.
    """
    try:
        await collection.insert_one(document)
    except DuplicateKeyError:
        same = {"_id": document["_id"]} | ({"order": document["order"]} if "order" in document else {})
        return await collection.find_one(same, {"_id": 1}) is not None
    return True


async def insert_missing(collection: Any, values: Sequence[Document]) -> None:
    """Insert documents, but leave those alone whose keys are there already."""
    if not values:
        return
    try:
        await collection.insert_many(values, ordered=False)
    except BulkWriteError as error:
        for fault in error.details["writeErrors"]:
            if fault["code"] != _DUPLICATE_KEY:
                raise OperationFailure(fault["errmsg"], fault["code"]) from None
        for fault in error.details["writeConcernErrors"]:
            late = fault.get("errInfo", {}).get("wtimeout")
            kind = WTimeoutError if late else WriteConcernError
            raise kind(fault["errmsg"], fault["code"], fault) from None


async def to_its_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Await `work`; if the caller is cancelled, let `work` end first, because what it has begun to write goes on."""
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
