"""Management calls to a model server: describe, pause, resume, load weights, abort, health check.

Sampling itself is done by `OpenAICompatibleEngine`; `ServerFormat` holds the wire format.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import orjson

from agentrl_core.engines.remote.failures import BACKOFF
from agentrl_core.engines.remote.wire_formats import Ask, ServerFormat, error_text, read_json
from agentrl_core.errors import EngineError
from agentrl_core.http.backoff import LATER
from agentrl_core.http.server_client import ExchangeError, ServerClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentrl_core.engines.remote.wire_formats import Top

_OK = 200
_FIRST_SERVER_ERROR = 500
_NOT_READY = LATER - {_FIRST_SERVER_ERROR}
"""Statuses that a router sends while the server behind it starts. Not 500: that comes from the server itself, which has
failed."""
_HEALTH_S = 10.0
"""Timeout of a health check."""
_PROBE = Ask(
    id="agentrl-probe",
    request_id="probe",
    prompt_ids=(0,),
    max_tokens=1,
    temperature=1.0,
    top_p=1.0,
    top_k=0,
    stop=(),
    stop_token_ids=(),
    seed=1,
    grammar=None,
    top_logprobs=2,
    stream=False,
    model="",
)
"""Request for one token, to see how a server computes logprobs."""


@attrs.frozen(kw_only=True)
class Served:
    """Self-description of a server."""

    model: str
    context_length: int | None = None
    label: str | None = None
    """The server's name for the weights in use."""
    model_path: str = ""
    """Directory that the weights were loaded from."""


class ServerControl:
    """Calls to a model server other than sampling; they are repeated for up to `patience_s` while it is away.

    The calls of the engine's start (`describe`, `takes_temperature_into_account`) are not repeated.
    """

    def __init__(self, client: ServerClient, server: ServerFormat, *, load_timeout_s: float, patience_s: float) -> None:
        self._client, self._server = client, server
        self._load_timeout_s = load_timeout_s
        self._patience_s = patience_s

    # Calls while the engine starts.

    async def describe(self, model: str | None) -> Served:
        """Return the served model's name, context length and weights; `EngineError` if `model` is not served."""
        path = "/v1/models"
        cards = (await self._call("GET", path)).get("data") or []
        with self._expected(path):
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
        if self._server.name != "SGLang":
            return served
        info = await self._call("GET", "/model_info")
        label = info.get("weight_version")
        return attrs.evolve(
            served, label=None if label is None else str(label), model_path=str(info.get("model_path") or "")
        )

    async def takes_temperature_into_account(self, model: str) -> bool:
        """Return whether a vLLM server's logprobs are scaled by the temperature; by default they are not."""
        seen: list[Top] = []
        for temperature in (1.0, 2.0):
            ask = attrs.evolve(_PROBE, model=model, temperature=temperature)
            reply = await self._call("POST", self._server.path, self._server.body(ask))
            with self._expected(self._server.path):
                seen += self._server.part(ask, reply, 0).top_logprobs
        with self._expected(self._server.path):
            (first, second), (third, fourth) = ([logprob for _, logprob in top] for top in seen)
        # If scaled, temperature 2 halves the distance between the logprobs of two tokens. Compare with both outcomes.
        return abs((third - fourth) - (first - second)) > abs((third - fourth) - (first - second) / 2)

    async def load_at_start(self, directory: Path, label: str) -> None:
        """Have an idle server load weights, and resume it if a run that ended early has left it paused."""
        await self.pause()
        await self.load(directory, label)
        await self.resume()

    async def _call(self, method: str, path: str, body: Any = None) -> Any:
        where = f"{self._client.url}{path}"
        try:
            with await self._client.request(method, path, b"" if body is None else orjson.dumps(body)) as reply:
                data = await reply.read()
        except ExchangeError as error:
            raise EngineError(f"{where}: no answer: {error}. Is the server running?") from error
        if reply.status != _OK:
            raise EngineError(f"{where}: status {reply.status}: {error_text(data)}")
        return read_json(where, data)

    @contextlib.contextmanager
    def _expected(self, path: str) -> Iterator[None]:
        """Convert errors of reading a server's self-description into an `EngineError`."""
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise EngineError(
                f"{self._client.url}{path}: the reply is not what {self._server.name} sends: "
                f"{type(error).__name__}: {error}"
            ) from error

    # Calls while the engine runs.

    async def pause(self) -> None:
        """Pause the server; returns once it has aborted its requests, which then return their tokens so far."""
        await self._post("/pause_generation", {"mode": "abort"})

    async def resume(self) -> None:
        """Let the server sample again."""
        await self._post("/continue_generation", {})

    async def load(self, directory: Path, label: str) -> None:
        """Have the server read weights from a directory that it sees under the same path."""
        await self._post("/update_weights_from_disk", _weights(directory, label), silence_s=self._load_timeout_s)

    async def abort(self, ask_id: str) -> None:
        """End one call; the server ignores unknown ids. Tried once, because the call would end by itself anyway."""
        await self._post("/abort_request", {"rid": ask_id}, patience_s=0.0)

    async def is_up(self) -> bool:
        """Return whether the server answers; a proxy in front of it counts unless its status is 500 or above."""
        try:
            with await self._client.request("GET", "/v1/models", silence_s=_HEALTH_S) as reply:
                return reply.status < _FIRST_SERVER_ERROR
        except ExchangeError:
            return False

    async def _post(
        self, path: str, body: Any, *, silence_s: float | None = None, patience_s: float | None = None
    ) -> None:
        """Send a command, and repeat it while the server cannot be reached or answers that it is not ready.

        All commands may be repeated. Pausing, resuming and aborting have no further effect the second time, and a load
        names a directory and a version that no other load has. Nothing else is sent to the server before this returns;
        so a load that was still running when its connection broke ends with the same weights. Silence is not a reason
        to repeat: a server that needs longer than `load_timeout_s` would only start again.
        """
        patience_s = self._patience_s if patience_s is None else patience_s
        begun = time.monotonic()
        for attempt in itertools.count():
            try:
                with await self._client.request("POST", path, orjson.dumps(body), silence_s=silence_s) as reply:
                    if reply.status == _OK:
                        return
                    said = error_text(await reply.read_beginning())
                failure = EngineError(f"{self._client.url}{path}: status {reply.status}: {said}")
                again = reply.status in _NOT_READY
            except ExchangeError as error:
                failure, again = EngineError(f"{path}: {error}"), error.fault in {"connect", "broken"}
            if not again or time.monotonic() - begun >= patience_s:
                raise failure
            await asyncio.sleep(BACKOFF.wait_s(attempt))


def _weights(directory: Path, label: str) -> dict[str, Any]:
    # The server's prefix cache is flushed, because it holds keys and values of the old weights.
    return {"model_path": str(directory), "weight_version": label, "flush_cache": True}
