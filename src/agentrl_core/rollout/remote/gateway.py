"""`RemoteGateway`: the gateway of a sampling member, whose episodes are served by other processes of the run."""

from __future__ import annotations

import asyncio
import functools
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from agentrl_core.concurrency.wakeups import Wakeups
from agentrl_core.errors import RequestError, RunError, ServerLostError
from agentrl_core.gateway.call_types import Choice, Reply
from agentrl_core.gateway.members.wire import interaction_from, token_call_to
from agentrl_core.http.backoff import Backoff
from agentrl_core.rollout.order import stable_hash
from agentrl_core.rollout.remote.http_client import NoticingClient
from agentrl_core.rollout.remote.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping

    from agentrl_core.api.members import Member
    from agentrl_core.chat.facade import Chat
    from agentrl_core.config.sampling_sections import SamplingConfig
    from agentrl_core.gateway.call_types import ChatRequest
    from agentrl_core.types import Interaction, Record

T = TypeVar("T")

logger = logging.getLogger(__name__)


@attrs.define(kw_only=True, eq=False)
class RemoteSession:
    """Session of one record at a serving member."""

    record_id: str
    group_id: str
    base_url: str = attrs.field(repr=False)
    """URL without `/v1`; contains the session's token."""
    api_key: str = attrs.field(repr=False)
    token: str = attrs.field(repr=False)
    server: Server
    refusal: str = ""
    """Last refusal of a call; known once the session is closed."""
    fault: str = ""
    """Name of the failure of a call on its way to the server; empty if none failed."""


class RemoteGateway:
    """Opens the sessions of this process's records at the serving members of the run, and closes them.

    A session stays at its server for its life. The server with the fewest open sessions gets the next one, but a
    group's sessions stay together, because the engine keeps the prefixes of their common prompt. All methods belong to
    the agents' event loop.

    `patience_s` limits the wait for a server that takes a session. `chat_of(directory)` reads the policy's chat from a
    folder with its tokenizer files, which a server sends; only token-level workflows need it.
    """

    fatal: RunError | None = None
    """Always None: a server that fails is lost, and `open_session` raises an error if no other takes its place."""

    def __init__(
        self,
        *,
        run_id: str,
        member_id: str,
        admin_key: str,
        patience_s: float = 600.0,
        chat_of: Callable[[Path], Chat] | None = None,
        backoff: Backoff = Backoff(),  # noqa: B008 - frozen
    ) -> None:
        self._run_id, self._member_id, self._admin_key = run_id, member_id, admin_key
        self._patience_s, self._backoff = patience_s, backoff
        self._chat_of = chat_of
        self._chat: Chat | None = None
        self._reading_chat = asyncio.Lock()
        self._servers: dict[str, Server] = {}
        """Live serving members by id."""
        self.takes_images = True
        """Whether the policy's chat template takes images, as the servers have told."""
        self._sessions: dict[str, RemoteSession] = {}
        """Open sessions by token."""
        self._groups: dict[str, tuple[Server, int]] = {}
        """Group -> server of its open sessions, and their number."""
        self._changed = Wakeups()
        self._later: set[asyncio.Task[None]] = set()
        """Requests whose results nobody waits for."""
        self.waits_for = ""
        """Description of what `open_session` waits for now, for the member's report; empty if it does not wait."""

    @functools.cached_property
    def http_client(self) -> NoticingClient:
        """Shared HTTP client for agents; closing it does nothing."""
        return NoticingClient(self._failed_on_the_way)

    @property
    def chat(self) -> Chat:
        """Chat template and tokenizer of the policy, which the first session brought."""
        if self._chat is None:
            raise RunError("the policy's tokenizer was not read: only token-level workflows need it in this process")
        return self._chat

    def update(self, members: Iterable[Member]) -> None:
        """Take the members of the run as the store has them: use the live servers among them, and give up the others.

        Episodes at a server that is not live any more end with `ServerLostError`.
        """
        live = {
            member.id: member for member in members if member.role == "serve" and member.state == "live" and member.url
        }
        self.takes_images = all(member.report.get("takes_images", True) for member in live.values())
        gone, joined = self._servers.keys() - live.keys(), live.keys() - self._servers.keys()
        for member_id in gone:
            server = self._servers.pop(member_id)
            server.lost.set()
            server.close()
        for member_id in joined:
            self._servers[member_id] = Server(live[member_id], self._admin_key)
        # Not at every call: those who wait would ask a server that is down at once, instead of after a while.
        if gone or joined:
            self._changed.wake()

    async def open_session(
        self, record: Record, *, seed_key: tuple[int, ...], sampling: SamplingConfig | None = None
    ) -> RemoteSession:
        """Open the session of a record at a server; waits if none takes it.

        `RunError` after `patience_s`, or if a server refuses the admin key; `ClaimLostError` if this member was
        declared lost.
        """
        body = {
            "run_id": self._run_id,
            "member_id": self._member_id,
            "record_id": record.id,
            "group_id": record.group_id,
            "seed_key": seed_key,
            "is_eval": record.is_eval,
        }
        if sampling is not None:
            body |= {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k", "max_tokens")}
        deadline = asyncio.get_running_loop().time() + self._patience_s
        attempt, why = 0, ""
        while True:
            # Before asking: a server that joins meanwhile must end the wait.
            with self._changed.listen() as changed:
                asked: set[Server] = set()
                while (server := self._choose(record.group_id, asked)) is not None:
                    asked.add(server)
                    try:
                        session = await self._open_at(server, record, body)
                    except ServerLostError as loss:
                        why = f"{loss}"
                        continue
                    self.waits_for = ""
                    return session
                await self._wait(changed, deadline, attempt, why)
            attempt += 1

    async def attend(self, session: RemoteSession, work: Coroutine[Any, Any, T]) -> T:
        """Await the agent's work, but cancel it and raise `ServerLostError` once the session's server is lost."""
        agent = asyncio.ensure_future(work)
        loss = asyncio.ensure_future(session.server.lost.wait())
        try:
            await asyncio.wait({agent, loss}, return_when=asyncio.FIRST_COMPLETED)
            if agent.done():
                return agent.result()
            raise _gone(session.server)
        finally:
            loss.cancel()
            if not agent.done():
                agent.cancel()
                await asyncio.wait({agent})

    async def ask(self, session: RemoteSession, request: ChatRequest, id_prefix: str) -> Reply:  # noqa: ARG002 - the server has its own
        """Answer a session's call on token ids; `RequestError` if it is refused or fails."""
        try:
            reply = await session.server.generate(session.api_key, token_call_to(request))
        except ServerLostError as loss:
            session.fault = "no reply"
            raise RequestError(503, "server_lost", str(loss)) from loss
        choice = Choice(
            interaction=interaction_from(reply["interaction"]),
            prompt_tokens=reply["prompt_tokens"],
            finish_reason=reply["finish_reason"],
        )
        return Reply(request=request, choices=(choice,))

    async def close_session(self, session: RemoteSession) -> tuple[Interaction, ...]:
        """End a session and return its interactions, ordered by `seq`; `ServerLostError` if its server is gone."""
        server = session.server
        self._forget(session)
        if server.lost.is_set():
            raise _gone(server)
        try:
            reply = await server.close_session(session.record_id)
        except ServerLostError:
            # It may be alive and out of reach, and its generations for this record would go on.
            if server.is_down:
                server.unclosed.add(session.record_id)
            raise
        session.refusal = reply["refusal"]
        self._close_left(server)
        return tuple(map(interaction_from, reply["interactions"]))

    def fault_of(self, session: RemoteSession) -> ServerLostError | None:
        """Return an error if a call of the session failed on the way to its server; its agent is then not to blame."""
        if not session.fault:
            return None
        return ServerLostError(
            f"{session.server}: a call of the agent did not reach it or got no reply: {session.fault}"
        )

    async def close(self) -> None:
        """End all connections; for the owner, on the event loop that used them, when no episode is running any more."""
        for task in self._later:
            task.cancel()
        if self._later:
            await asyncio.wait(self._later)
        for server in self._servers.values():
            server.close()
        await self.http_client.close_for_good()

    def _choose(self, group_id: str, without: set[Server]) -> Server | None:
        """Return the server for a group's next session; None if there is none but those in `without`."""
        held = self._groups.get(group_id)
        if held is not None and held[0] not in without and not held[0].is_down and not held[0].lost.is_set():
            return held[0]
        return min(
            (server for server in self._servers.values() if server not in without),
            # Equal servers in an order of each group's own: otherwise all samplers would begin with the same one.
            key=lambda server: (server.is_down, server.load, stable_hash(f"{group_id}/{server.member.id}")),
            default=None,
        )

    async def _open_at(self, server: Server, record: Record, body: Mapping[str, Any]) -> RemoteSession:
        if self._chat_of is not None:
            await self._read_chat(server, self._chat_of)
        server.sessions += 1
        opening = asyncio.ensure_future(server.open_session(body))
        try:
            # Shielded: a session that the server opens after this was cancelled must be closed.
            reply = await asyncio.shield(opening)
        except asyncio.CancelledError:
            server.sessions -= 1
            self._start(self._undo(opening, server, record.id))
            raise
        except BaseException:
            server.sessions -= 1
            raise
        base_url: str = reply["base_url"]
        session = RemoteSession(
            record_id=record.id,
            group_id=record.group_id,
            base_url=base_url,
            api_key=reply["api_key"],
            token=base_url.rpartition("/")[2],
            server=server,
        )
        self._sessions[session.token] = session
        held = self._groups.get(record.group_id)
        self._groups[record.group_id] = (server, held[1] + 1 if held is not None and held[0] is server else 1)
        self._close_left(server)
        return session

    async def _wait(self, changed: asyncio.Event, deadline: float, attempt: int, why: str) -> None:
        """Wait until the servers change; if there are some that did not answer, at most until they are asked again."""
        what = why or f"no serving member of run '{self._run_id}' is live"
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            raise RunError(
                f"waited {self._patience_s:g} s for a server of run '{self._run_id}' that opens sessions: {what}; "
                "start `agentrl serve`, and see that this host can reach its address"
            )
        if not self.waits_for:
            logger.warning("waiting for a server that opens sessions: %s", what)
        self.waits_for = f"a server that opens sessions: {what}"
        limit_s = min(left, self._backoff.wait_s(attempt)) if self._servers else left
        try:
            await asyncio.wait_for(changed.wait(), limit_s)
        except TimeoutError:
            return

    async def _read_chat(self, server: Server, chat_of: Callable[[Path], Chat]) -> None:
        async with self._reading_chat:
            if self._chat is None:
                files = await server.tokenizer()
                self._chat = await asyncio.to_thread(_chat_from, files, chat_of)

    def _forget(self, session: RemoteSession) -> None:
        """Count a session as closed."""
        session.server.sessions -= 1
        self._sessions.pop(session.token, None)
        held = self._groups.get(session.group_id)
        if held is not None and held[0] is session.server:
            if held[1] > 1:
                self._groups[session.group_id] = (held[0], held[1] - 1)
            else:
                del self._groups[session.group_id]

    def _failed_on_the_way(self, token: str, what: str) -> None:
        if (session := self._sessions.get(token)) is not None:
            session.fault = what

    def _close_left(self, server: Server) -> None:
        """Close the sessions that could not be closed while the server was out of reach."""
        records, server.unclosed = server.unclosed, set()
        for record_id in records:
            self._start(_try_close(server, record_id))

    async def _undo(self, opening: asyncio.Future[dict[str, Any]], server: Server, record_id: str) -> None:
        await asyncio.wait({opening})
        # Also after an error: the server may have opened the session all the same.
        if not opening.cancelled() and opening.exception() is not None:
            logger.debug("opening a session that nobody waits for failed: %s", opening.exception())
        await _try_close(server, record_id)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._later.add(task)
        task.add_done_callback(self._later.discard)


async def _try_close(server: Server, record_id: str) -> None:
    """Close a session that nobody waits for."""
    if server.lost.is_set():
        return
    try:
        await server.close_session(record_id)
    except ServerLostError as loss:
        logger.info("the session of record %s is not closed: %s", record_id, loss)
        if server.is_down:
            server.unclosed.add(record_id)
    except RunError as error:
        logger.info("the session of record %s cannot be closed: %s", record_id, error)


def _gone(server: Server) -> ServerLostError:
    return ServerLostError(f"{server} has left the run or was declared lost")


def _chat_from(files: Mapping[str, str], chat_of: Callable[[Path], Chat]) -> Chat:
    """Read a chat from the texts of its files; blocks."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            # The name alone: a server must not write elsewhere.
            (Path(folder) / Path(name).name).write_text(text, encoding="utf-8")
        return chat_of(Path(folder))
