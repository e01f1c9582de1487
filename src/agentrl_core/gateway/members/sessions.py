"""Keep the sessions that sampling members opened, by record, so that a lost reply may be asked for again."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, TypeAlias

import attrs

from agentrl_core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agentrl_core.api.stores import Store
    from agentrl_core.config.sampling_sections import SamplingConfig
    from agentrl_core.gateway.sessions import Session
    from agentrl_core.types import Interaction, Record

Interactions: TypeAlias = "tuple[Interaction, ...]"

_REMEMBERED_ENDS = 100_000
"""Number of closed sessions whose close may be asked for again."""


@attrs.define(kw_only=True, eq=False)
class _Held:
    """Session of a record that a member samples."""

    member_id: str
    session: Session
    closing: concurrent.futures.Future[Interactions] | None = None
    """Result of the close that has begun; None while the session is open."""


class MemberSessions:
    """Sessions of the records that other processes sample; thread-safe.

    `open_session` and `close_session` are the gateway's. Everything may be repeated: a record's session is opened once,
    and its close returns the same interactions each time.
    """

    def __init__(
        self,
        *,
        store: Store,
        open_session: Callable[[Record, tuple[int, ...], SamplingConfig | None], Awaitable[Session]],
        close_session: Callable[[Session], Awaitable[Interactions]],
    ) -> None:
        self._store, self._open, self._close = store, open_session, close_session
        self._held: dict[str, _Held] = {}
        """Open and closing sessions by record id."""
        self._closed: OrderedDict[str, str] = OrderedDict()
        """Record id -> last refusal of its closed session, oldest first."""
        self._gone: set[str] = set()
        """Members that open no more sessions."""
        self._lock = threading.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        """Number of sessions that are open."""
        return len(self._held)

    async def open(
        self, member_id: str, record: Record, *, seed_key: tuple[int, ...], sampling: SamplingConfig | None
    ) -> Session:
        """Open a record's session for a member, or return the open one.

        `RequestError` (410) if it is closed, or if the member has left or was declared lost; (409) if the store has no
        such record of this run.
        """
        with self._lock:
            held = self._held.get(record.id)
            if member_id in self._gone:
                raise _member_gone(member_id)
            if record.id in self._closed or (held is not None and held.closing is not None):
                raise RequestError(410, "session_ended", f"the session of record {record.id} was closed")
        if held is not None:
            return held.session
        # Storing a call of an unknown record would fail, which counts as the failure of the store and of this server.
        known = [episode.record.run_id for episode in await self._store.episodes([record.id])]
        if known != [record.run_id]:
            raise _unknown_record(record)
        session = await self._open(record, seed_key, sampling)
        with self._lock:
            # The same request may have come twice at once, and the member may have gone meanwhile.
            held = self._held.setdefault(record.id, _Held(member_id=member_id, session=session))
            gone = member_id in self._gone
        if held.session is not session:
            await self._close(session)
        elif gone:
            await self.close(record.id)
            raise _member_gone(member_id)
        return held.session

    async def close(self, record_id: str) -> tuple[Interactions, str]:
        """Close a record's session; return its interactions, ordered by `seq`, and its last refusal.

        `RequestError` (404) if the session was not opened in this process. A caller that is cancelled does not stop the
        close.
        """
        with self._lock:
            held, refusal = self._held.get(record_id), self._closed.get(record_id)
            begun = held is not None and held.closing is not None
            if held is not None and held.closing is None:
                held.closing = concurrent.futures.Future()
        if held is None and refusal is not None:
            # The first reply was lost. Read again instead of kept: a record may have megabytes.
            episode = await self._store.episode(record_id)
            return (() if episode is None else episode.interactions), refusal
        if held is None or held.closing is None:
            raise _unknown_session(record_id)
        if not begun:
            task = asyncio.ensure_future(self._finish(record_id, held, held.closing))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        interactions = await asyncio.shield(asyncio.wrap_future(held.closing))
        return interactions, held.session.refusal

    async def close_all_of(self, member_id: str) -> int:
        """Close the sessions of a member that has left or was declared lost; return how many there were.

        It opens no more: members that come back have other ids.
        """
        with self._lock:
            self._gone.add(member_id)
            records = [record_id for record_id, held in self._held.items() if held.member_id == member_id]
        await asyncio.gather(*(self.close(record_id) for record_id in records))
        return len(records)

    async def _finish(self, record_id: str, held: _Held, closing: concurrent.futures.Future[Interactions]) -> None:
        """Close a session and complete `closing`, with the error if it fails."""
        try:
            interactions = await self._close(held.session)
        except BaseException as error:
            with self._lock:
                del self._held[record_id]
            closing.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        with self._lock:
            del self._held[record_id]
            self._closed[record_id] = held.session.refusal
            while len(self._closed) > _REMEMBERED_ENDS:
                self._closed.popitem(last=False)
        closing.set_result(interactions)


def _member_gone(member_id: str) -> RequestError:
    return RequestError(410, "member_gone", f"member {member_id} has left the run or was declared lost; join it again")


def _unknown_record(record: Record) -> RequestError:
    return RequestError(
        409,
        "unknown_record",
        f"the run {record.run_id[:100]} has no record {record.id[:100]}; store it before its session",
    )


def _unknown_session(record_id: str) -> RequestError:
    return RequestError(
        404, "unknown_session", f"record {record_id[:100]} has no session here; it ended with its server"
    )
