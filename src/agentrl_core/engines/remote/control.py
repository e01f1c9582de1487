"""Control calls to a model server: describe, pause, resume, load weights, abort, health check.

`ServerProtocol` says which calls these are; they are made here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from agentrl_core.api.remote import Served
from agentrl_core.engines.remote.failures import AwayError
from agentrl_core.engines.remote.replies import SHAPE_ERRORS, error_text, misread, read_json, shown
from agentrl_core.errors import EngineError
from agentrl_core.http.backoff import RETRYABLE_STATUSES
from agentrl_core.http.server_client import ExchangeError, ServerClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from agentrl_core.api.remote import Command, ServerProtocol

_OK = 200
_NO_SUCH_ROUTE = 404
_FIRST_SERVER_ERROR = 500
_NOT_READY = RETRYABLE_STATUSES - {_FIRST_SERVER_ERROR}
"""Statuses that a router sends while the server behind it starts. Not 500: that comes from the server itself, which has
failed."""
_HEALTH_S = 10.0
"""Timeout of health checks."""


class ServerControl:
    """Calls to a model server other than sampling. They are not repeated here: `AwayError` says that they may be."""

    def __init__(self, client: ServerClient, protocol: ServerProtocol, *, load_timeout_s: float) -> None:
        self._client, self._protocol = client, protocol
        self._load_timeout_s = load_timeout_s

    # Calls that look at a server.

    async def describe(self, model: str | None) -> Served:
        """Return the served model's name, context length and weights; `EngineError` if `model` is not served."""
        path = "/v1/models"
        listed = await self.get(path)
        if listed is None:
            raise EngineError(f"{self._client.url}{path}: status 404; is engine.url a model server's, without /v1?")
        with self._expected(path):
            cards = listed.get("data") or []
            names = [card["id"] for card in cards]
            if not cards:
                raise EngineError(f"{self._client.url}: the server serves no model; start it with one")
            if model is not None and model not in names:
                known = ", ".join(map(str, names))
                raise EngineError(f"{self._client.url}: the server serves {known}, not {model!r}; change engine.model")
            card = cards[0 if model is None else names.index(model)]
            length = card.get("max_model_len")
            if not isinstance(card["id"], str) or (length is not None and (type(length) is not int or length < 1)):
                raise TypeError(f"found the model {card['id']!r:.60} with max_model_len {length!r:.60}")
            served = Served(model=card["id"], context_length=length, model_path=str(card.get("root") or ""))
        with self._expected():
            return await self._protocol.describe(self, served)

    async def workers(self) -> Sequence[str] | None:
        """Return the addresses of the servers behind a router; None if this is a server itself."""
        with self._expected():
            return await self._protocol.workers(self)

    async def get(self, path: str) -> Mapping[str, Any] | None:
        """Return the JSON object at `path`; None if the server has no such route."""
        return await self._call("GET", path)

    async def post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the JSON object of the reply; None if the server has no such route."""
        return await self._call("POST", path, orjson.dumps(body))

    async def _call(self, method: str, path: str, body: bytes = b"") -> Mapping[str, Any] | None:
        where = f"{self._client.url}{path}"
        try:
            with await self._client.request(method, path, body) as reply:
                data = await reply.read()
        except ExchangeError as error:
            raise AwayError(f"{where}: no answer: {error}. Is the server running?") from error
        if reply.status == _NO_SUCH_ROUTE:
            return None
        if reply.status in _NOT_READY:
            raise AwayError(f"{where}: status {reply.status}: {error_text(data)}. Is the server still starting?")
        if reply.status != _OK:
            raise EngineError(f"{where}: status {reply.status}: {error_text(data)}")
        found: Mapping[str, Any] = read_json(where, data)
        return found

    @contextlib.contextmanager
    def _expected(self, path: str = "") -> Iterator[None]:
        """Convert errors of reading a self-description into an `EngineError`, and add the address to others."""
        try:
            yield
        except EngineError as error:
            if self._client.url in str(error):
                raise
            raise EngineError(f"{self._client.url}: {error}") from error
        except SHAPE_ERRORS as error:
            raise EngineError(f"{self._client.url}{path}: {misread(self._protocol.name, error)}") from error

    # Calls that tell it to do something.

    async def pause(self) -> None:
        """Pause the server; returns once it has aborted its requests, which then return their tokens so far."""
        await self._run(self._protocol.pause())

    async def resume(self) -> None:
        """Let the server sample again."""
        await self._run(self._protocol.resume())

    async def load(self, directory: Path, label: str) -> None:
        """Have the server read weights from a directory that it sees under the same path."""
        await self._run(self._protocol.load_weights(directory, label), silence_s=self._load_timeout_s)

    @property
    def url(self) -> str:
        """The server's address."""
        return self._client.url

    async def send(self, commands: Sequence[Command]) -> None:
        """Send commands of a delivery, each with as long a silence as loading weights may take."""
        await self._run(commands, silence_s=self._load_timeout_s)

    async def abort(self, call_id: str) -> None:
        """End one call; the server ignores unknown ids."""
        await self._run(self._protocol.abort(call_id))

    async def is_up(self) -> bool:
        """Return whether the server answers; a proxy in front of it counts unless its status is 500 or above."""
        try:
            with await self._client.request("GET", "/v1/models", silence_s=_HEALTH_S) as reply:
                return reply.status < _FIRST_SERVER_ERROR
        except ExchangeError:
            return False

    async def _run(self, commands: Sequence[Command], *, silence_s: float | None = None) -> None:
        """Send commands one after the other."""
        for command in commands:
            await self._send(command, silence_s)

    def _check_reply(self, command: Command, data: bytes) -> None:
        """Raise `EngineError` unless the reply says what is expected."""
        where = f"{self._client.url}{command.path}"
        told = read_json(where, data)
        if any(told.get(name) != value for name, value in command.expected.items()):
            expected = ", ".join(f"{name}: {value}" for name, value in command.expected.items())
            raise EngineError(f"{where}: expected {expected}, found {shown(data)}")

    async def _send(self, command: Command, silence_s: float | None) -> None:
        """Send a command; raise `AwayError` if it may be sent again later, because the server is not there.

        Pausing, resuming and aborting have no further effect the second time, and a load names a directory and a
        version that no other load has. Deliveries are not repeated, whatever is raised (see `Meeting`). Silence is not
        a reason to repeat: a server that needs longer than `load_timeout_s` would only start again.
        """
        path, body = command.path, orjson.dumps(command.body)
        where = f"{self._client.url}{path}"
        try:
            with await self._client.request("POST", path, body, silence_s=silence_s) as reply:
                if reply.status == _OK:
                    if command.expected:
                        self._check_reply(command, await reply.read())
                    return
                said = error_text(await reply.read_beginning())
        except ExchangeError as error:
            kind = AwayError if error.fault in {"connect", "broken"} else EngineError
            raise kind(f"{path}: {error}") from error
        kind = AwayError if reply.status in _NOT_READY else EngineError
        raise kind(f"{where}: status {reply.status}: {said}")
