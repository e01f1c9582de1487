"""HTTP client for upstreams: other parties' models that agents call as judges, user simulators or summarizers.

It sends, retries, and turns every failure into an error that names the provider. It knows neither sessions nor the
store: `upstream_calls` makes interactions of the replies. They are text, without token ids, and never trained.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING

import attrs
import orjson

from agentrl_core.concurrency.secrecy import mask
from agentrl_core.errors import RequestError
from agentrl_core.gateway.upstream_chat import (
    UNREADABLE,
    StreamedPieces,
    UnreadableError,
    UpstreamPiece,
    body_of,
    body_of_rest,
    read_reply,
    sum_usage,
)
from agentrl_core.http.backoff import RETRYABLE_STATUSES, Backoff, RetryPolicy, TransientError, retry_after_s
from agentrl_core.http.server_client import ExchangeError, ServerClient, ServerReply, server_sent_events

if TYPE_CHECKING:
    from agentrl_core.config.sampling_sections import UpstreamConfig
    from agentrl_core.gateway.call_types import ChatRequest, TokenUsage

_OK = 200
_OWN_FAULTS = frozenset({400, 404, 409, 413, 422})
"""Statuses that are about the agent's own request, so they reach the agent unchanged."""
_TOO_MANY = 429
_OVERLOADED = frozenset({503, 529})
_TIMED_OUT = frozenset({408, 504, 522, 524})
_UNAUTHORIZED = frozenset({401, 403})
_LONGEST_WAIT_S = 20.0
"""Longest wait before a retry; if a provider asks for more, the agent gets the error with its `Retry-After`."""
_MOST_STREAMED_BYTES = 64 << 20
"""Largest stream as a whole; a single event, or a reply that is not streamed, is bounded by `MOST_BYTES`."""
_MOST_SHOWN_CHARS = 500


class Upstreams:
    """Upstreams of a config, by the model names that agents use."""

    def __init__(
        self,
        config: Mapping[str, UpstreamConfig],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        backoff = Backoff(longest_s=_LONGEST_WAIT_S, uniform=uniform)
        self._by_name = {
            name: Upstream(name, upstream, backoff=backoff, sleep=sleep) for name, upstream in config.items()
        }

    def find(self, model: str) -> Upstream | None:
        """Return the upstream of a model name; None if the policy answers it."""
        return self._by_name.get(model)

    @property
    def names(self) -> tuple[str, ...]:
        """Model names that are answered by upstreams."""
        return tuple(self._by_name)

    def close(self) -> None:
        """Close the connections to all providers."""
        for upstream in self._by_name.values():
            upstream.close()


class Upstream:
    """Client of one model of one provider; every failure is a `RequestError` that names the provider."""

    def __init__(
        self, name: str, config: UpstreamConfig, *, backoff: Backoff, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self.name = name
        self._config = config
        if config.api_key_env is not None:
            mask(config.api_key_env)
        self._retries = RetryPolicy(
            max_retries=config.max_retries, backoff=backoff, longest_wait_s=_LONGEST_WAIT_S, sleep=sleep
        )
        self._client = ServerClient(
            config.url,
            proxy=config.proxy,
            headers=self._authorization,
            silence_s=config.timeout_s,
            retries=0,  # `_begun` retries both lost connections and refused requests, under one limit
        )

    async def complete(self, request: ChatRequest) -> tuple[UpstreamPiece, ...]:
        """Return the whole reply: one piece per choice, with the usage on the last piece.

        A provider that ignores `n` is asked again until there are `n` choices.
        """
        body = body_of(request, self._config.model or self.name, stream=False)
        choices: list[UpstreamPiece] = []
        usage: TokenUsage | None = None
        # Providers that ignore `n` send one choice per request.
        while len(choices) < request.n:
            reply = await self._begun(body_of_rest(body, request.n, len(choices)))
            try:
                data = await reply.read()
                found, used = read_reply(orjson.loads(data), most=request.n - len(choices))
            except ExchangeError as error:
                raise self._lost(error) from error
            except UNREADABLE as error:
                raise self._unreadable(reply, error) from error
            finally:
                reply.close()
            choices += [attrs.evolve(piece, choice=len(choices) + index) for index, piece in enumerate(found)]
            usage = sum_usage(usage, used)
        return (*choices[:-1], attrs.evolve(choices[-1], usage=usage))

    async def stream(self, request: ChatRequest) -> AsyncGenerator[UpstreamPiece, None]:
        """Yield the reply piece by piece as it arrives; tool calls are yielded only when they are complete."""
        body = body_of(request, self._config.model or self.name, stream=True)
        done, used = 0, None
        while done < request.n:
            reply = await self._begun(body_of_rest(body, request.n, done))
            pieces, usage = StreamedPieces(most=request.n - done), used
            events = server_sent_events(reply, most_bytes=_MOST_STREAMED_BYTES)
            try:
                async with aclosing(events):
                    async for data in events:
                        for piece in self._read(pieces, reply, data):
                            # A provider may send a growing usage with each event: the last one counts for this stream,
                            # and `used` has the sum of the streams before it.
                            if piece.usage is not None:
                                usage = sum_usage(used, piece.usage)
                                piece = attrs.evolve(piece, usage=usage)  # noqa: PLW2901
                            yield attrs.evolve(piece, choice=piece.choice + done)
                done, used = done + pieces.count_finished(), usage
            except ExchangeError as error:
                raise self._lost(error) from error
            except UnreadableError as error:
                raise self._failure(502, "upstream_error", str(error)) from error
            finally:
                reply.close()

    def _read(self, pieces: StreamedPieces, reply: ServerReply, data: bytes) -> list[UpstreamPiece]:
        if data == b"[DONE]":
            return []
        try:
            event = orjson.loads(data)
            failed = bool(event.get("error"))
            new = [] if failed else pieces.read(event)
        except UNREADABLE as error:
            raise self._unreadable(reply, error) from error
        if failed:
            raise self._failure(502, "upstream_error", f"broke off its stream: {self._said(data)}")
        return new

    def close(self) -> None:
        """Close the connections to the provider."""
        self._client.close()

    # Sending.

    async def _begun(self, body: bytes) -> ServerReply:
        """Return a reply with status 200, after retries where they may help; the caller reads and closes it.

        A call is also sent again if its connection broke and the provider may have answered already: a chat completion
        has no side effects there, so the worst case is that it is paid twice.
        """
        return await self._retries.call(functools.partial(self._asked, body))

    async def _asked(self, body: bytes) -> ServerReply:
        try:
            reply = await self._client.request("POST", "/chat/completions", body)
            if reply.status == _OK:
                return reply
            with reply:
                refusal = self._refusal(reply.status, reply.headers, await reply.read_beginning())
        except ExchangeError as error:
            lost = self._lost(error)
            raise (TransientError(lost) if error.fault in {"connect", "broken"} else lost) from error
        raise (
            TransientError(refusal, asked_s=retry_after_s(reply.headers))
            if reply.status in RETRYABLE_STATUSES
            else refusal
        )

    def _authorization(self) -> Mapping[str, str]:
        """Return the header with the key; the environment is read at each call, so the key may be set late.

        The key is kept nowhere.
        """
        variable = self._config.api_key_env
        if variable is None:
            return {}
        key = os.environ.get(variable, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            state = "has characters that no HTTP header can hold" if key else "is empty or not set"
            raise self._failure(
                502, "upstream_key_missing", f"needs a key, but the environment variable {variable} {state}"
            )
        return {"authorization": f"Bearer {key}"}

    # Failures.

    def _refusal(self, status: int, headers: Mapping[str, str], data: bytes) -> RequestError:
        # 502, as the agent's own key is good. The provider's text is left out, because it quotes parts of the key.
        if status in _UNAUTHORIZED:
            sent = f"the key in {self._config.api_key_env}" if self._config.api_key_env else "a request without a key"
            return self._failure(502, "upstream_unauthorized", f"refused {sent} (status {status})")
        said = f"answered with status {status}: {self._said(data)}"
        wait_s = retry_after_s(headers)
        if status == _TOO_MANY:
            return self._failure(_TOO_MANY, "rate_limit_exceeded", said, retry_after_s=wait_s)
        if status in _OVERLOADED:
            return self._failure(503, "upstream_overloaded", said, retry_after_s=wait_s)
        if status in _TIMED_OUT:
            return self._failure(504, "upstream_timeout", said)
        if status in _OWN_FAULTS:
            return self._failure(status, "upstream_refused", said)
        return self._failure(502, "upstream_error", said)

    def _lost(self, error: ExchangeError) -> RequestError:
        if error.fault == "silent":
            return self._failure(504, "upstream_timeout", f"sent nothing for {self._config.timeout_s:g} s")
        if error.fault == "too large":
            return self._failure(502, "upstream_error", f"sent too much: {error}")
        return self._failure(502, "upstream_error", f"could not be called: {error}")

    def _unreadable(self, reply: ServerReply, error: Exception) -> RequestError:
        if isinstance(error, UnreadableError):
            return self._failure(502, "upstream_error", str(error))
        kind = reply.headers.get("content-type", "no content type")
        # Compressed replies are not unpacked: a small one may expand to any size.
        if packed := reply.headers.get("content-encoding", "").strip():
            kind += f" in the encoding {packed}, which it was asked not to use,"
        shown = f"{type(error).__name__}: {error}"[:_MOST_SHOWN_CHARS]
        return self._failure(502, "upstream_error", f"answered with {kind} that is no chat completion ({shown})")

    def _failure(self, status: int, code: str, what: str, *, retry_after_s: float | None = None) -> RequestError:
        message = f"the provider of model {self.name!r} at {self._config.url} {what}"
        return RequestError(status, code, message, retry_after_s=retry_after_s)

    def _said(self, data: bytes) -> str:
        """Return the provider's error message, shortened and without the key, which it may quote."""
        text = data.decode(errors="replace")
        try:
            error = orjson.loads(data)["error"]
            text = error["message"] if isinstance(error, dict) else str(error)
        except (orjson.JSONDecodeError, KeyError, TypeError):
            pass
        variable = self._config.api_key_env
        key = os.environ.get(variable, "").strip() if variable else ""
        text = str(text).replace(key, "…") if key else str(text)
        return text if len(text) <= _MOST_SHOWN_CHARS else f"{text[:_MOST_SHOWN_CHARS]}…"
