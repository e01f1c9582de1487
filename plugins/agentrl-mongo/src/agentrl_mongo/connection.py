"""Connection to one database: calls from any event loop, retries while the server is away, errors with advice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from bson.errors import BSONError
from pymongo.errors import (
    ConfigurationError,
    ConnectionFailure,
    DocumentTooLarge,
    DuplicateKeyError,
    ExecutionTimeout,
    OperationFailure,
    PyMongoError,
    WTimeoutError,
)

from agentrl_core.errors import StoreError, UnstorableError
from agentrl_mongo import schema
from agentrl_mongo.drivers import DRIVERS
from agentrl_mongo.loop_thread import LoopThread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from agentrl_mongo.address import Address
    from agentrl_mongo.drivers import Driver, DriverName

_T = TypeVar("_T")

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 2.0
"""First and longest pause before a call is repeated; each pause is twice as long as the one before."""
_SELECTION_S, _CONNECT_S, _LEAST_REPLY_S = 2.0, 5.0, 0.5
"""Longest time that the driver looks for a server and connects; least time for a reply, then the call is repeated."""
_LAST_CALLS_S = 5.0
"""Longest time that `close` waits for calls that are running."""
_AUTHENTICATION_FAILED, _UNAUTHORIZED, _TOO_LARGE = 18, 13, 10334


class Connection:
    """A client on a thread of its own and one database; callers may wait for changes that this process makes."""

    def __init__(
        self, address: Address, database: str, *, driver: DriverName, patience_s: float, reply_s: float
    ) -> None:
        self.where = f"mongodb://{address.hosts}/{database}"
        self._address, self._name, self._driver_name = address, database, driver
        self._patience_s, self._reply_s = patience_s, max(_LEAST_REPLY_S, reply_s)
        self._starting = threading.Lock()
        self._loop: LoopThread | None = None
        self._pid = 0
        self._closed = False
        self._driver: Driver | None = None
        self._is_store = False
        self._running: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()
        self.changes = 1
        """One more than the number of calls of `wake`, so that 0 is a number that no caller has seen."""
        self.known: set[tuple[str, str]] = set()
        """Collection and key of documents that are there and not finished, which saves a query per write."""
        self.taking, self.claiming = asyncio.Lock(), asyncio.Lock()
        """Held by the caller of this process that takes groups, or changes which groups are sampled."""
        self.completed: dict[str, str] = {}
        """Run -> last plan of a claim that this process completed."""

    @property
    def driver(self) -> Driver:
        """The client; exists while a call runs."""
        if self._driver is None:
            raise AssertionError("a call began before its client was made")
        return self._driver

    async def call(
        self, what: str, work: Callable[[Any], Awaitable[_T]], *, writes: bool = True, creates: bool = False
    ) -> _T:
        """Run `work` with the database on the connection's loop; `what` is its name in errors, an infinitive.

        `work` is repeated from its beginning if the server goes away, so that it must expect its own earlier writes.
        With `creates`, an empty database becomes a store.
        """
        return await self._run(what, self._repeated(what, work, writes=writes, creates=creates))

    def wake(self) -> None:
        """Wake this process's waiting callers; on the connection's loop only."""
        self.changes += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, seen: int, timeout_s: float) -> int:
        """Wait until `changes` differs from `seen`, for at most `timeout_s`; return it."""
        return await self._run("wait for changes", self._waited(seen, timeout_s))

    async def _waited(self, seen: int, timeout_s: float) -> int:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.changes == seen:
                    await self._changed.wait()
        if self._closed:
            raise self._closed_error("wait for changes")
        return self.changes

    async def close(self) -> None:
        """Let running calls end, close the client and end its thread; waiting callers get a `StoreError`."""
        with self._starting:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is not None and self._pid == os.getpid():
            await loop.run(self._disconnected())
            await loop.stop()

    async def _disconnected(self) -> None:
        self.wake()
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=_LAST_CALLS_S)
            for task in late:
                task.cancel()
        if self._driver is not None:
            await self._driver.close()

    async def _run(self, what: str, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            loop = self._on_its_loop(what)
        except StoreError:
            work.close()
            raise
        try:
            return await loop.run(self._counted(work))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():  # by `close`, not by the caller
                raise self._closed_error(what) from None
            raise
        except RuntimeError:  # the loop was closed meanwhile
            if self._closed:
                raise self._closed_error(what) from None
            raise

    async def _counted(self, work: Coroutine[Any, Any, _T]) -> _T:
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("coroutines run in tasks")
        self._running.add(task)
        try:
            return await work
        finally:
            self._running.discard(task)

    def _on_its_loop(self, what: str) -> LoopThread:
        """Return the thread; start it at the first call, and again in a process that was forked."""
        with self._starting:
            if self._closed:
                raise self._closed_error(what)
            if self._loop is None or self._pid != os.getpid():
                # Threads and connections of the parent do not exist here, so nothing of them can be closed.
                self._loop, self._pid = LoopThread(f"mongo {self._name}"), os.getpid()
                self._driver, self._is_store, self._running = None, False, set()
                self._changed, self.taking, self.claiming = asyncio.Event(), asyncio.Lock(), asyncio.Lock()
            return self._loop

    def _closed_error(self, what: str) -> StoreError:
        return StoreError(f"{self.where}: cannot {what}: the store is closed")

    async def _repeated(self, what: str, work: Callable[[Any], Awaitable[_T]], *, writes: bool, creates: bool) -> _T:
        loop = asyncio.get_running_loop()
        deadline, pause_s = loop.time() + self._patience_s, _FIRST_PAUSE_S
        while True:
            try:
                return await work(await self._database(writes=writes, creates=creates))
            except (ConnectionFailure, ExecutionTimeout, WTimeoutError) as error:
                if loop.time() + pause_s > deadline:
                    raise self._away(what, error) from None
            except OperationFailure as error:
                if not error.has_error_label("RetryableWriteError") or loop.time() + pause_s > deadline:
                    raise self._refused(what, error) from None
            except (PyMongoError, BSONError, OverflowError, UnicodeEncodeError) as error:
                raise self._refused(what, error) from None
            except (KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
                if writes:
                    raise
                raise StoreError(
                    f"{self.where}: cannot {what}: a document is damaged ({type(error).__name__}: {error}); put back "
                    "a copy of the database, or start a new run"
                ) from error
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    async def _database(self, *, writes: bool, creates: bool) -> Any:
        if self._driver is None:
            try:
                self._driver = DRIVERS[self._driver_name](self._address.url, **self._client_options())
            except ValueError as error:  # such as a port that is none
                raise StoreError(f"{self.where}: {self._reason(error)}; correct store.url") from None
        database = self._driver.client[self._name]
        if not self._is_store:
            self._is_store = await schema.is_store(database, self.where)
            if (self._is_store and writes) or creates:
                await schema.create(database)
                self._is_store = True
        return database

    def _client_options(self) -> dict[str, Any]:
        """Return the options of the client; those that the url sets are left to it."""
        given = {
            "appname": "agentrl",
            "serverSelectionTimeoutMS": 1 + int(1000 * min(_SELECTION_S, self._patience_s)),
            "connectTimeoutMS": int(1000 * _CONNECT_S),
            "socketTimeoutMS": int(1000 * self._reply_s),
            # A write returns when it is on the disks of most servers, so that it survives their power cut.
            "w": "majority",
            "journal": True,
        }
        own = self._address.options | ({"journal"} if "j" in self._address.options else set())
        return {name: value for name, value in given.items() if name.lower() not in own}

    def _away(self, what: str, error: PyMongoError) -> StoreError:
        return StoreError(
            f"{self.where}: cannot {what}: no answer for {self._patience_s:g} s ({self._reason(error)}); start the "
            "server or correct store.url, and resume; nothing that was stored before is lost"
        )

    def _refused(self, what: str, error: Exception) -> StoreError:
        message = f"{self.where}: cannot {what}: {self._reason(error)}"
        if isinstance(error, DuplicateKeyError):
            return StoreError(f"{self.where}: cannot {what}: {DUPLICATE}")
        if isinstance(error, DocumentTooLarge) or getattr(error, "code", None) == _TOO_LARGE:
            return UnstorableError(f"{message}; MongoDB keeps documents of up to 16 MiB")
        if isinstance(error, BSONError | OverflowError | UnicodeEncodeError):
            return UnstorableError(f"{message}; expected values that JSON and UTF-8 can represent")
        if isinstance(error, ConfigurationError):
            return StoreError(f"{message}; correct store.url")
        if isinstance(error, OperationFailure) and error.code in (_AUTHENTICATION_FAILED, _UNAUTHORIZED):
            return StoreError(
                f"{message}; correct user and password, and name the database that knows the user with "
                "?authSource=admin in store.url"
            )
        return StoreError(message)

    def _reason(self, error: Exception) -> str:
        """Return the first line of an error without password and without the driver's description of its state."""
        text = self._address.without_secrets(str(error)).partition(", Timeout: ")[0].partition(", full error: ")[0]
        return (text.splitlines() or [type(error).__name__])[0][:300]


DUPLICATE = "it is in this database already; if another process writes the same run, end that process"
