"""Connection of a SQLite store: transactions of one thread at a time, locks of other processes, errors with advice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sqlite3
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from agentrl_core.concurrency.critical import critical
from agentrl_core.concurrency.wakeups import Wakeups
from agentrl_core.errors import MemberError, StoreError, UnstorableError
from agentrl_core.stores import sqlite_file
from agentrl_core.stores.sqlite_file import BusyError, open_for_reading, open_for_writing, store_error
from agentrl_core.stores.sqlite_schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

_T = TypeVar("_T")

RECHECK_S = 0.5
"""Period at which a waiting call looks for changes by other processes; changes by this process wake it at once."""

_TURN_S = 0.002
"""Longest time that a call blocks its event loop to wait for a call of another thread, which usually takes less."""
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.001, 0.05
"""First and longest pause of a call that met a lock; each pause is twice as long as the one before."""
_SHARE_S = 0.002
"""Longest pause per call of this process that waits for a lock.

A lock is free for moments only while several processes write. A call that looks rarely may miss them for seconds,
which a short pause prevents; many calls that look often would take the processor's time.
"""


class SQLiteConnection:
    """One connection that serves all threads and event loops of the process, one call at a time.

    A call takes well under a millisecond, which is less than the way to a worker thread and back. A call that meets a
    lock retries later and does not block its event loop meanwhile.
    """

    def __init__(self, *, path: Path) -> None:
        self._open(Path(path), open_for_writing)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Open an existing file read-only, also while its run is active; writes raise `StoreError`."""
        # Without the constructor, which would create a missing file and upgrade an old one.
        store = cls.__new__(cls)
        store._open(path, open_for_reading)  # noqa: SLF001 - a constructor of this class
        return store

    @property
    def location(self) -> str:
        """Path of the file."""
        return str(self.path)

    def _open(self, path: Path, connect: Callable[[Path], sqlite3.Connection]) -> None:
        self.path = path
        # Absolute, because an agent in this process may change the working directory.
        self._file = str(path.absolute())
        self._connection: sqlite3.Connection | None = connect(path)
        self._inode = _inode(self._file)
        self._lock = threading.Lock()
        self._changed = Wakeups()
        self._waiting: set[object] = set()

    async def flush(self) -> None:
        """Return once everything that was written so far survives a power cut."""
        await self._patiently(self._flushed)

    def _flushed(self) -> None:
        with self._writing("flush") as db:
            # With FULL a commit ends with an fsync of the whole log, which covers all earlier commits as well.
            db.execute("PRAGMA synchronous = FULL")
            try:
                db.execute("BEGIN IMMEDIATE")
                # SQLite skips the sync of an empty transaction, so write something that changes nothing.
                db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                db.execute("PRAGMA synchronous = NORMAL")
            # Move the log into the database, as far as no reader needs it: a copy of the file alone is then complete.
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    async def close(self) -> None:
        """Flush and close the file; further calls do nothing."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
        self._changed.wake()

    async def _until(self, look: Callable[[], Awaitable[_T | None]]) -> _T:
        """Call `look` after every change until it finds something."""
        with self._changed.listen() as changed:
            while (found := await look()) is None:
                # The timeout is for changes by other processes: they cannot set this event.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), RECHECK_S)
                # Cleared before the next look at the tables, so that a change during that look is not lost.
                changed.clear()
        return found

    async def _restored(
        self, what: str, restore: Callable[[tuple[Any, ...]], _T], query: str, *values: object
    ) -> list[_T]:
        """Run a query and convert its rows to values with `restore`."""
        found = await self._select(what, query, *values)
        with self._restoring(what):
            return [restore(row) for row in found]

    @contextlib.contextmanager
    def _restoring(self, what: str) -> Iterator[None]:
        """Turn the errors of converting a row, which this store cannot have written so, into `StoreError`."""
        try:
            yield
        except (ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
            raise StoreError(
                f"{self.path}: cannot {what}: a row is damaged ({type(error).__name__}: {error}); fix: continue from "
                "a copy of the file, or start a new run"
            ) from error

    def _check_run(self, db: sqlite3.Connection, run_id: str, member_id: str = "") -> None:
        """Raise `StoreError` if there is no such run, and `MemberError` if the member that writes is not live."""
        row = db.execute("SELECT 1 FROM runs WHERE id = ?", (run_id,)).fetchone()
        if row is None:
            raise self._unknown_run(run_id)
        live = "SELECT 1 FROM members WHERE run_id = ? AND id = ? AND state = 'live'"
        if member_id and not db.execute(live, (run_id, member_id)).fetchone():
            raise MemberError(
                f"{self.path}: this trainer (member {member_id}) of run '{run_id}' was declared lost, and another one "
                "may have continued the run; end this process"
            )

    def _unknown_run(self, run_id: str) -> StoreError:
        return StoreError(f"{self.path}: there is no run '{run_id}' in this file")

    async def _select(self, what: str, query: str, *values: object) -> list[tuple[Any, ...]]:
        return await self._patiently(lambda: self._selected(what, query, values))

    def _selected(self, what: str, query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        with self._exclusive(what) as db:
            return db.execute(query, values).fetchall()

    async def _write(self, what: str, statement: str, values: Sequence[object]) -> None:
        """Execute a single statement, which needs no transaction."""
        await self._patiently(lambda: self._written(what, statement, values))

    def _written(self, what: str, statement: str, values: Sequence[object]) -> None:
        with self._writing(what) as db:
            db.execute(statement, values)

    async def _patiently(self, operation: Callable[[], _T]) -> _T:
        """Call `operation` until it meets no lock, with pauses in which the event loop runs other tasks.

        A lock of another process makes this fail after `BUSY_TIMEOUT_S`; a lock of another thread never does.
        """
        pause_s, waited_s = _FIRST_PAUSE_S, 0.0
        this = object()
        try:
            while True:
                try:
                    return operation()
                except BusyError:
                    if waited_s >= sqlite_file.BUSY_TIMEOUT_S:
                        raise
                    waited_s += pause_s
                except _InUseError:
                    pass
                self._waiting.add(this)
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - so that two do not keep in step
                pause_s = min(2 * pause_s, _SHARE_S * len(self._waiting), _LAST_PAUSE_S)
        finally:
            self._waiting.discard(this)

    @contextlib.asynccontextmanager
    async def _transaction(self, what: str) -> AsyncIterator[sqlite3.Connection]:
        """Commit all writes of the block, or none of them if the block raises.

        The block must not await anything: it holds the process's only connection.
        """
        with contextlib.ExitStack() as held:
            db = await self._patiently(lambda: self._begin(what, held))
            try:
                yield db
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def _begin(self, what: str, held: contextlib.ExitStack) -> sqlite3.Connection:
        """Begin a transaction; closing `held` ends the exclusive use of the connection."""
        # If BEGIN meets a lock, `begun` releases the connection, and the caller can try again.
        with contextlib.ExitStack() as begun:
            db = begun.enter_context(self._writing(what))
            db.execute("BEGIN IMMEDIATE")
            held.push(begun.pop_all())
            return db

    @contextlib.contextmanager
    def _writing(self, what: str) -> Iterator[sqlite3.Connection]:
        """Yield the connection for a write; raise `StoreError` if the file is no longer at its path."""
        with self._exclusive(what) as db:
            # SQLite would go on writing into the unlinked file, and all of it would be lost at the end.
            if _inode(self._file) != self._inode:
                raise StoreError(f"{self.path}: cannot {what}: the file was moved or removed while in use; put it back")
            yield db

    @contextlib.contextmanager
    def _exclusive(self, what: str) -> Iterator[sqlite3.Connection]:
        """Yield the connection to one thread at a time; turn SQLite's errors into `StoreError`."""
        with critical():
            if not self._lock.acquire(timeout=_TURN_S):
                raise _InUseError
            try:
                if self._connection is None:
                    raise StoreError(f"{self.path}: cannot {what}: the store is closed")
                yield self._connection
            except sqlite3.Error as error:
                raise store_error(self.path, what, error) from error
            except UnicodeEncodeError as error:
                message = f"{self.path}: cannot {what}: {error}; expected text that UTF-8 can encode"
                raise UnstorableError(message) from error
            finally:
                self._lock.release()


class _InUseError(Exception):
    """Another thread of this process uses the connection."""


def _inode(file: str) -> tuple[int, int] | None:
    """Return the identity of the file at this path, which a replaced file does not share; None without a file."""
    try:
        found = os.stat(file)  # noqa: PTH116 - called for every LLM call; Path.stat takes twice as long
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
