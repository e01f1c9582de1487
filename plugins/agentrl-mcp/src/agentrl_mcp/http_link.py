"""JSON-RPC requests to an MCP server over streamable HTTP, with the connections of one pool for all episodes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import attrs

from agentrl_core.api.http import ExchangeError, ServerClient, ServerReply, server_sent_events
from agentrl_core.errors import AgentRLError, DeliveryUnknownError, InvalidResultError, ToolNotSentError
from agentrl_mcp.rpc import (
    Answer,
    Inquire,
    LinkLostError,
    RpcError,
    answer_inquiry,
    message_of,
    notification_bytes,
    request_bytes,
    result_in,
)

if TYPE_CHECKING:
    from agentrl_mcp.oauth import Login

logger = logging.getLogger(__name__)

SESSION = "mcp-session-id"
_ALWAYS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
_REFUSED = frozenset({401, 403, 407, 429, 503})
"""Statuses with which a server, or a proxy before it, refuses a request that no tool has seen."""
_UNAUTHORIZED = frozenset({401, 403})
_MOST_TOKENS = 3
"""Tokens that are tried for one message: none or an old one, a new one, and one for more than that allows."""
_UNANSWERED = frozenset({502, 504})
"""Statuses of a proxy that has got no answer from the server, which may have run the tool."""
_REDIRECTS = frozenset({307, 308})
"""Redirects that keep method and body."""
_END_S = 0.1
"""Longest wait for the end of a stream after its response, so that the connection can be used again."""
_CANCEL_S = 2.0
"""Longest time to tell the server that a request is cancelled."""
_END_SESSION_S = 5.0
_LONGEST_WAIT_S = 5.0
"""Longest wait before a stream is continued."""
_MOST_SHOWN_BYTES = 2000
_OPEN_S = 2.0
"""Longest wait for the beginning of the stream with a server's questions; some begin it with the first question."""
_LISTEN_S = 3600.0
"""Longest silence of that stream, after which it is opened again."""


class StatusError(RpcError):
    """An HTTP error status without a JSON-RPC error in its body."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(0, message)
        self.status = status


@attrs.define(kw_only=True, eq=False)
class HttpLink:
    """Requests to one endpoint, in one session of the protocol if the server has sessions."""

    client: ServerClient
    streams: ServerClient
    """Client for streams that stay open."""
    path: str
    """Path and query of the endpoint."""
    name: str
    """Name of the server, for messages."""
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """Headers of every request; may hold a key, so they are never shown."""
    most_bytes: int
    """Largest response in bytes."""
    on_notification: Callable[[str], None]
    """Function that is told the method of each notification."""
    slots: asyncio.Semaphore
    """Free connections of the server, for all its links."""
    login: Login | None = None
    """Access tokens of OAuth."""
    silence_s: float = 30.0
    """Longest silence of the server on a message that gets no response."""
    session_id: str = ""
    version: str = ""
    """Version of the protocol, once it is known."""
    _numbers: itertools.count[int] = attrs.field(factory=lambda: itertools.count(1), init=False)
    _inquire: dict[int, Inquire] = attrs.field(factory=dict, init=False)
    """Requests under way -> what answers questions during them."""
    _listening: asyncio.Task[None] | None = attrs.field(default=None, init=False)
    _cancelling: set[asyncio.Task[None]] = attrs.field(factory=set, init=False)

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float,
        inquire: Inquire | None = None,
    ) -> Answer:
        """Send a request, as `Link.request` says."""
        number = next(self._numbers)
        body = request_bytes(number, method, params)
        begun = False
        if inquire is not None:
            self._inquire[number] = inquire
        try:
            async with asyncio.timeout(timeout_s), self.slots:
                begun = True
                return await self._exchange(number, body, headers, timeout_s, inquire)
        except TimeoutError:
            if not begun:
                raise ToolNotSentError(f"{self.name}: no connection was free within {timeout_s:.3g} s") from None
            self._cancel(number)
            raise DeliveryUnknownError(f"{self.name}: no answer to {method} within {timeout_s:.3g} s") from None
        except asyncio.CancelledError:
            self._cancel(number)
            raise
        finally:
            self._inquire.pop(number, None)

    async def _exchange(
        self, number: int, body: bytes, headers: Mapping[str, str] | None, timeout_s: float, inquire: Inquire | None
    ) -> Answer:
        try:
            reply = await self._post(body, headers, timeout_s)
        except ExchangeError as error:
            if error.fault == "connect":
                raise ToolNotSentError(f"{self.name}: {error}") from None
            raise _after_sending(self.name, error) from None
        with reply:
            try:
                await self._check(reply)
                if not self.session_id and (session_id := reply.headers.get(SESSION)):
                    self.session_id = session_id
                kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind == "text/event-stream":
                    return await self._streamed(reply, number, inquire)
                if kind != "application/json":
                    raise InvalidResultError(f"{self.name}: expected JSON or an event stream, found '{kind}'")
                return result_in(message_of(await reply.read(self.most_bytes)))
            except ExchangeError as error:
                raise _after_sending(self.name, error) from None
            except ValueError as error:
                raise InvalidResultError(f"{self.name}: its response is {error}") from None

    async def _post(self, body: bytes, headers: Mapping[str, str] | None, silence_s: float) -> ServerReply:
        """Send a message, again if the server wants another token than it got."""
        for tokens in range(_MOST_TOKENS):
            used = "" if self.login is None else self.login.header
            reply = await self._post_once(body, headers, silence_s)
            if self.login is None or reply.status not in _UNAUTHORIZED or tokens == _MOST_TOKENS - 1:
                break
            try:
                if not await self.login.renew(reply.status, reply.headers, used):
                    break
            except BaseException:
                reply.close()
                raise
            reply.close()
        return reply

    async def _post_once(self, body: bytes, headers: Mapping[str, str] | None, silence_s: float) -> ServerReply:
        fields = self._fields(headers)
        reply = await self.client.request("POST", self.path, body, silence_s=silence_s, headers=fields)
        if reply.status in _REDIRECTS and (path := self._redirected(reply.headers.get("location", ""))):
            # Usually a slash at the end of the path. The endpoint does not change again, so it is remembered.
            reply.close()
            self.path = path
            reply = await self.client.request("POST", path, body, silence_s=silence_s, headers=fields)
        return reply

    async def log_in(self) -> None:
        """Get a token before the first request: a person who logs in takes longer than a request may."""
        try:
            (await self._post(request_bytes(0, "ping", {}), None, self.silence_s)).close()
        except ExchangeError as error:
            raise ToolNotSentError(f"{self.name}: {error}") from None

    def _fields(self, headers: Mapping[str, str] | None) -> dict[str, str]:
        fields = {**self.headers, **_ALWAYS}
        if self.login is not None and self.login.header:
            fields["authorization"] = self.login.header
        if self.session_id:
            fields[SESSION] = self.session_id
        if self.version:
            fields["mcp-protocol-version"] = self.version
        return {**fields, **(headers or {})}

    def _redirected(self, location: str) -> str:
        """Return the path of a redirect that stays on the server; empty for others, which could take the key away."""
        target = urlsplit(urljoin(self.client.url + self.path, location))
        own = urlsplit(self.client.url)
        if not location or (target.scheme, target.netloc) != (own.scheme, own.netloc):
            return ""
        return target.path + (f"?{target.query}" if target.query else "")

    async def _check(self, reply: ServerReply) -> None:
        """Raise the error of a reply that is no response."""
        status = reply.status
        if status == 200:  # noqa: PLR2004
            return
        told = await reply.read_beginning(_MOST_SHOWN_BYTES)
        if status < 400:  # noqa: PLR2004
            raise InvalidResultError(f"{self.name}: its answer has the status {status}, and no response in it")
        if self.session_id and (status == 404 or (status == 400 and b"session" in told.lower())):  # noqa: PLR2004
            # 400 with a text about the session is what the TypeScript SDK's examples answer.
            raise LinkLostError(f"{self.name}: the server does not know the session any more", sent=False)
        with contextlib.suppress(ValueError):
            result_in(message_of(told))
        text = f"{self.name}: HTTP status {status}"
        if status in _UNAUTHORIZED:
            text += f"; {_remedy(reply, self.login)}"
        if self.version and status in _REFUSED:
            raise ToolNotSentError(text)
        if self.version and status in _UNANSWERED:
            raise DeliveryUnknownError(text)
        raise StatusError(status, text)

    async def _streamed(self, reply: ServerReply, number: int, inquire: Inquire | None) -> Answer:
        """Return the result from an event stream, which may bring notifications and questions of the server before."""
        place = _Place()
        answer = await self._begun(reply, number, inquire, place)
        while answer is None:
            if not place.last_id:
                raise DeliveryUnknownError(f"{self.name}: its stream ended without a response")
            # A server with event ids may end a stream at any time, and continue it where the client asks for the rest.
            await asyncio.sleep(place.wait_s)
            fields = self._fields({"last-event-id": place.last_id})
            with await self.client.request("GET", self.path, headers=fields) as rest:
                if rest.status != 200:  # noqa: PLR2004
                    raise DeliveryUnknownError(f"{self.name}: its stream ended, and the rest has status {rest.status}")
                answer = await self._begun(rest, number, inquire, place)
        return answer

    async def _begun(self, reply: ServerReply, number: int, inquire: Inquire | None, place: _Place) -> Answer | None:
        """Return the result, None if the stream ends before it, also by the end of the connection if it can go on."""
        try:
            return await self._until_response(reply, number, inquire, place)
        except ExchangeError as error:
            if error.fault != "broken" or not place.last_id:
                raise
            return None

    async def _until_response(
        self, reply: ServerReply, number: int, inquire: Inquire | None, place: _Place
    ) -> Answer | None:
        """Return the result, None if the stream ends before it."""
        events = server_sent_events(reply, most_event_bytes=self.most_bytes, on_field=place.note)
        async with contextlib.aclosing(events):
            async for event in events:
                if not event:
                    continue
                message = message_of(event)
                if "method" not in message:
                    if message.get("id") != number and message.get("id") is not None:
                        raise InvalidResultError(f"{self.name}: its response has the id of another request")
                    await _to_the_end(events)
                    return result_in(message)
                if "id" in message:
                    await self._send(await answer_inquiry(message, inquire))
                else:
                    self.on_notification(message["method"])
        return None

    async def listen(self) -> None:
        """Open the stream on which a server with sessions asks besides its answers; none if it offers no such stream.

        A question there does not say which call it belongs to: it is answered for the oldest one.
        """
        self._stop_listening()
        opened = asyncio.Event()
        self._listening = asyncio.get_running_loop().create_task(self._listen(opened))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OPEN_S):
                await opened.wait()

    def _stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.cancel()

    async def _listen(self, opened: asyncio.Event) -> None:
        place = _Place()
        while True:
            try:
                if not await self._listen_once(place, opened):
                    return
            except (ExchangeError, AgentRLError, ValueError) as error:
                logger.debug("%s: the stream with its questions ended: %s", self.name, error)
            finally:
                opened.set()
            await asyncio.sleep(place.wait_s)

    async def _listen_once(self, place: _Place, opened: asyncio.Event) -> bool:
        """Answer questions until the stream ends; return whether there is one to be opened again."""
        since = {"last-event-id": place.last_id} if place.last_id else {}
        fields = self._fields({"accept": "text/event-stream", **since})
        with await self.streams.request("GET", self.path, silence_s=_LISTEN_S, headers=fields) as reply:
            if reply.status != 200:  # noqa: PLR2004
                return False
            opened.set()
            events = server_sent_events(reply, most_event_bytes=self.most_bytes, on_field=place.note)
            async with contextlib.aclosing(events):
                async for event in events:
                    if not event:
                        continue
                    message = message_of(event)
                    if "id" in message and "method" in message:
                        await self._send(await answer_inquiry(message, next(iter(self._inquire.values()), None)))
                    elif "method" in message:
                        self.on_notification(message["method"])
        return True

    async def _send(self, body: bytes) -> None:
        """Send a message that gets no response."""
        try:
            with await self._post(body, None, self.silence_s) as reply:
                await reply.read_beginning(_MOST_SHOWN_BYTES)
        except ExchangeError as error:
            raise _after_sending(self.name, error) from None

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        await self._send(notification_bytes(method, params))

    def _cancel(self, number: int) -> None:
        """Tell a server with a session that nobody waits for an answer; others see that the connection has ended."""
        if self.session_id:
            body = notification_bytes("notifications/cancelled", {"requestId": number, "reason": "no longer needed"})
            task = asyncio.get_running_loop().create_task(self._send_quietly(body))
            self._cancelling.add(task)
            task.add_done_callback(self._cancelling.discard)

    async def _send_quietly(self, body: bytes) -> None:
        with contextlib.suppress(ExchangeError, TimeoutError):
            async with asyncio.timeout(_CANCEL_S):
                (await self._post(body, None, _CANCEL_S)).close()

    def forget(self) -> None:
        """Forget a session that the server does not know any more."""
        self.session_id = self.version = ""

    async def close(self) -> None:
        """End the session."""
        self._stop_listening()
        for task in self._cancelling:
            task.cancel()
        if self.session_id:
            fields = self._fields(None)
            self.session_id = ""
            with contextlib.suppress(ExchangeError, TimeoutError):
                async with asyncio.timeout(_END_SESSION_S):
                    reply = await self.client.request("DELETE", self.path, silence_s=_END_SESSION_S, headers=fields)
                    reply.close()


@attrs.define
class _Place:
    """Place in an event stream, from which the server can continue it."""

    last_id: str = ""
    wait_s: float = 1.0
    """Wait before the client asks for the rest, as the server wants it."""

    def note(self, field: str, value: str) -> None:
        """Note a field of the stream."""
        if field == "id":
            self.last_id = value
        elif field == "retry" and value.isdecimal():
            self.wait_s = min(int(value) / 1000, _LONGEST_WAIT_S)


async def _to_the_end(events: AsyncIterator[bytes]) -> None:
    with contextlib.suppress(TimeoutError, ExchangeError):
        async with asyncio.timeout(_END_S):
            async for _ in events:
                pass


def _remedy(reply: ServerReply, login: Login | None) -> str:
    if login is not None:
        return "it refuses the token that it got by `oauth`"
    if "resource_metadata" in reply.headers.get("www-authenticate", ""):
        return "it wants a login: set `oauth: {}`, or more of its options"
    return "headers_env names the variables with its keys"


def _after_sending(name: str, error: ExchangeError) -> Exception:
    """Return the error of an exchange that failed when the request may have arrived."""
    if error.fault in {"garbled", "too large"}:
        return InvalidResultError(f"{name}: {error}")
    return DeliveryUnknownError(f"{name}: {error}")
