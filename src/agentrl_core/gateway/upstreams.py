"""Ask other providers for the replies of models that are not the policy: judges, user simulators, summarizers.

They are spoken to in OpenAI's chat completions. What they answer is text: recorded, never trained.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs
import orjson

from agentrl_core.errors import RequestError
from agentrl_core.gateway.dialects.openai_fields import was_cut
from agentrl_core.gateway.exchange import Usage
from agentrl_core.gateway.serving.transport import ssl_context
from agentrl_core.server_client import ExchangeError, ServerClient, ServerReply, server_sent_events

if TYPE_CHECKING:
    from agentrl_core.config.schema import UpstreamConfig
    from agentrl_core.gateway.exchange import ChatRequest
    from agentrl_core.types import Message

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter"]

_OK = 200
_OWN_FAULTS = frozenset({400, 404, 409, 413, 422})
"""Statuses that are about the agent's request and reach it as they are."""
_TOO_MANY = 429
_LATER = frozenset({_TOO_MANY, 500, 502, 503, 504})
"""Statuses after which the same may work."""
_TIMED_OUT = frozenset({408, 504})
_UNAUTHORIZED = frozenset({401, 403})
_LONGEST_WAIT_S = 20.0
"""A provider that wants more time before a retry is not waited for: the agent is told."""
_FIRST_WAIT_S = 0.5
_MOST_SHOWN_CHARS = 500
_UNREADABLE = (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, IndexError)
"""What reading a body that is no chat completion raises."""
_MESSAGE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id")
"""Providers refuse messages with other keys, the thoughts of earlier turns among them."""


@attrs.frozen(kw_only=True)
class UpstreamPiece:
    """What is new of one reply; the only piece of it where the reply is not streamed."""

    choice: int = 0
    """Which of the `n` replies."""
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """Whole calls, in OpenAI's shape; the id is empty where the provider gave none."""
    finish_reason: FinishReason | None = None
    """On the last piece of each choice."""
    logprobs: tuple[Mapping[str, Any], ...] = ()
    """OpenAI's entries, one per token of the content, as they came."""
    usage: Usage | None = None
    """On the last piece of all, where the provider tells."""


class Upstreams:
    """The providers of a config, by the model names that agents use."""

    def __init__(
        self, config: Mapping[str, UpstreamConfig], *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._by_name = {name: Upstream(name, upstream, sleep=sleep) for name, upstream in config.items()}

    def find(self, model: str) -> Upstream | None:
        """Return the provider of a model; None where the policy answers."""
        return self._by_name.get(model)

    @property
    def names(self) -> tuple[str, ...]:
        """The model names that go elsewhere."""
        return tuple(self._by_name)

    def close(self) -> None:
        """End all connections."""
        for upstream in self._by_name.values():
            upstream.close()


class Upstream:
    """One model of one provider; every failure is a `RequestError` that says whose it is."""

    def __init__(self, name: str, config: UpstreamConfig, *, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.name = name
        self._config = config
        self._sleep = sleep
        self._client = ServerClient(
            config.url,
            ssl_context=ssl_context,
            headers=self._authorization,
            silence_s=config.timeout_s,
            retries=config.max_retries,
        )

    async def complete(self, request: ChatRequest) -> tuple[UpstreamPiece, ...]:
        """Return the whole reply: one piece per choice, the usage on the last."""
        body = orjson.dumps(_body(request, self._config.model or self.name, stream=False))
        reply = await self._begun(body)
        try:
            return _whole(orjson.loads(await reply.read()))
        except ExchangeError as error:
            raise self._lost(error) from error
        except _UNREADABLE as error:
            raise self._unreadable(reply, error) from error
        finally:
            reply.close()

    async def stream(self, request: ChatRequest) -> AsyncGenerator[UpstreamPiece, None]:
        """Yield the reply as it comes; a tool call comes whole."""
        reply = await self._begun(orjson.dumps(_body(request, self._config.model or self.name, stream=True)))
        pieces = _Pieces()
        try:
            async with aclosing(server_sent_events(aiter(reply))) as events:
                async for data in events:
                    for piece in self._read(pieces, reply, data):
                        yield piece
        except ExchangeError as error:
            raise self._lost(error) from error
        finally:
            reply.close()
        if not pieces.finished:
            raise self._failure(502, "upstream_error", "ended its stream without a finish reason")

    def _read(self, pieces: _Pieces, reply: ServerReply, data: bytes) -> list[UpstreamPiece]:
        if data == b"[DONE]":
            return []
        try:
            event = orjson.loads(data)
            failed = bool(event.get("error"))
            new = [] if failed else pieces.read(event)
        except _UNREADABLE as error:
            raise self._unreadable(reply, error) from error
        if failed:
            raise self._failure(502, "upstream_error", f"broke off: {self._said(data)}")
        return new

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    # Sending.

    async def _begun(self, body: bytes) -> ServerReply:
        """Return a reply that began with status 200, after retries where they may help; the caller closes it."""
        for attempt in range(self._config.max_retries + 1):
            try:
                reply = await self._client.request("POST", "/chat/completions", body)
                if reply.status == _OK:
                    return reply
                try:
                    status, headers, data = reply.status, reply.headers, await reply.read()
                finally:
                    reply.close()
            except ExchangeError as error:
                raise self._lost(error) from error
            wait = _seconds(headers.get("retry-after"))
            wait = _FIRST_WAIT_S * 2**attempt if wait is None else wait
            if status not in _LATER or attempt == self._config.max_retries or wait > _LONGEST_WAIT_S:
                raise self._refusal(status, headers, data)
            await self._sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def _authorization(self) -> Mapping[str, str]:
        """Read the key now: it may be set after the start, and is kept nowhere."""
        variable = self._config.api_key_env
        if variable is None:
            return {}
        key = os.environ.get(variable, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            state = "holds what no header can" if key else "is empty or not set"
            raise self._failure(502, "upstream_key_missing", f"needs a key, and the variable {variable} {state}")
        return {"authorization": f"Bearer {key}"}

    # What can be wrong.

    def _refusal(self, status: int, headers: Mapping[str, str], data: bytes) -> RequestError:
        if status in _UNAUTHORIZED:  # what it says quotes parts of the key
            sent = f"the key in {self._config.api_key_env}" if self._config.api_key_env else "a request without a key"
            return self._failure(502, "upstream_unauthorized", f"refused {sent} (status {status})")
        said = f"answered with status {status}: {self._said(data)}"
        if status == _TOO_MANY:
            return self._failure(
                _TOO_MANY, "rate_limit_exceeded", said, retry_after_s=_seconds(headers.get("retry-after"))
            )
        if status in _TIMED_OUT:
            return self._failure(504, "upstream_timeout", said)
        if status in _OWN_FAULTS:
            return self._failure(status, "upstream_refused", said)
        return self._failure(502, "upstream_error", said)

    def _lost(self, error: ExchangeError) -> RequestError:
        if error.fault == "silent":
            return self._failure(504, "upstream_timeout", f"said nothing for {self._config.timeout_s:g} s")
        return self._failure(502, "upstream_error", f"could not be asked: {error}")

    def _unreadable(self, reply: ServerReply, error: Exception) -> RequestError:
        kind = reply.headers.get("content-type", "no content type")
        shown = f"{type(error).__name__}: {error}"
        return self._failure(502, "upstream_error", f"answered with {kind} that is no chat completion ({shown})")

    def _failure(self, status: int, code: str, what: str, *, retry_after_s: float | None = None) -> RequestError:
        message = f"the provider of model {self.name!r} at {self._config.url} {what}"
        return RequestError(status, code, message, retry_after_s=retry_after_s)

    def _said(self, data: bytes) -> str:
        """Return what the provider says, without the key that it may repeat."""
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


# Asking.


def _body(request: ChatRequest, model: str, *, stream: bool) -> dict[str, Any]:
    """Translate a request; what the agent left out is left to the provider."""
    if request.prompts:
        raise RequestError(
            400, "unsupported_value", f"model {model!r} answers chats only; send messages", param="prompt"
        )
    body: dict[str, Any] = dict(request.ignored) if request.api == "chat" else {}
    for name, value in body.items():
        if was_cut(value):
            raise RequestError(400, "invalid_value", f"{name} is too large to be passed on to {model!r}", param=name)
    body |= {"model": model, "messages": [_message(message) for message in request.messages], "stream": stream}
    given = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "max_tokens": request.max_tokens,
        "stop": list(request.stop) or None,
        "n": request.n if request.n > 1 else None,
        "logprobs": request.logprobs or None,
        "top_logprobs": request.top_logprobs or None,
        "chat_template_kwargs": dict(request.template_options) or None,
        "response_format": _response_format(request),
        "stream_options": {"include_usage": True} if stream else None,
    }
    body |= {name: value for name, value in given.items() if value is not None}
    return body | _tools(request)


def _message(message: Message) -> Message:
    sent = {key: message[key] for key in _MESSAGE_KEYS if key in message}
    if sent.get("tool_calls") and not sent.get("content"):
        sent["content"] = None
    return sent


def _tools(request: ChatRequest) -> dict[str, Any]:
    tools, choice = list(request.tools), request.tool_choice
    if not tools:
        return {}
    wanted: Any = choice.mode
    if choice.names:
        tools = [tool for tool in tools if tool["function"]["name"] in choice.names]
        if choice.mode == "required" and len(choice.names) == 1:
            wanted = {"type": "function", "function": {"name": choice.names[0]}}
    body = {"tools": tools} if wanted == "auto" else {"tools": tools, "tool_choice": wanted}
    return body if request.parallel_tool_calls else body | {"parallel_tool_calls": False}


def _response_format(request: ChatRequest) -> dict[str, Any] | None:
    grammar = request.grammar
    if grammar is None:
        return None
    if grammar.kind == "json_object":
        return {"type": "json_object"}
    if grammar.kind == "json_schema":
        schema = {"name": "reply", "schema": orjson.loads(grammar.value), "strict": True}
        return {"type": "json_schema", "json_schema": schema}
    raise RequestError(
        400,
        "unsupported_value",
        f"model {request.model!r}: other providers take JSON schemas only, not {grammar.kind}",
        param="response_format",
    )


# Reading.


def _whole(body: Any) -> tuple[UpstreamPiece, ...]:
    pieces = []
    for index, choice in enumerate(body["choices"]):
        message = choice["message"]
        calls = tuple(_call(call) for call in message.get("tool_calls") or ())
        pieces.append(
            UpstreamPiece(
                choice=index,
                content=_text(message.get("content")) or _text(message.get("refusal")),
                reasoning=_text(message.get("reasoning_content") or message.get("reasoning")),
                tool_calls=calls,
                finish_reason=_finish_reason(choice.get("finish_reason"), called=bool(calls)),
                logprobs=_logprobs(choice),
            )
        )
    return (*pieces[:-1], attrs.evolve(pieces[-1], usage=_usage(body.get("usage"))))


class _Pieces:
    """Reads the events of a stream; the fragments of a tool call are held until it is whole."""

    def __init__(self) -> None:
        self._calls: dict[int, dict[int, dict[str, Any]]] = {}
        self._called: set[int] = set()
        self.finished: set[int] = set()
        """Choices whose finish reason has come."""

    def read(self, event: Any) -> list[UpstreamPiece]:
        """Return what an event completes."""
        pieces = [piece for choice in event.get("choices") or () for piece in self._choice(choice)]
        usage = _usage(event.get("usage"))
        if usage is not None:
            last = pieces.pop() if pieces else UpstreamPiece()
            pieces.append(attrs.evolve(last, usage=usage))
        return pieces

    def _choice(self, choice: Any) -> list[UpstreamPiece]:
        number = choice.get("index") or 0
        delta = choice.get("delta") or {}
        whole = [call for fragment in delta.get("tool_calls") or () for call in self._add(number, fragment)]
        reason = choice.get("finish_reason")
        if reason is not None:
            whole += self._close(number)
            self.finished.add(number)
        if whole:
            self._called.add(number)
        piece = UpstreamPiece(
            choice=number,
            content=_text(delta.get("content")) or _text(delta.get("refusal")),
            reasoning=_text(delta.get("reasoning_content") or delta.get("reasoning")),
            tool_calls=tuple(whole),
            finish_reason=None if reason is None else _finish_reason(reason, called=number in self._called),
            logprobs=_logprobs(choice),
        )
        return [] if piece == UpstreamPiece(choice=number) else [piece]

    def _add(self, number: int, fragment: Any) -> list[Mapping[str, Any]]:
        """Append a fragment to its call; the first of another call ends the one before."""
        calls = self._calls.setdefault(number, {})
        index = fragment.get("index")
        index = max(calls, default=0) if index is None else index
        done = self._close(number) if calls and index not in calls else []
        call = self._calls.setdefault(number, {}).setdefault(index, {"id": "", "name": "", "arguments": ""})
        function = fragment.get("function") or {}
        call["id"] = fragment.get("id") or call["id"]
        call["name"] += function.get("name") or ""
        arguments = function.get("arguments")
        call["arguments"] += arguments if isinstance(arguments, str | None) and arguments else ""
        if isinstance(arguments, dict):
            call["arguments"] = orjson.dumps(arguments).decode()
        return done

    def _close(self, number: int) -> list[Mapping[str, Any]]:
        return [_call({"id": call["id"], "function": call}) for call in self._calls.pop(number, {}).values()]


def _call(call: Any) -> Mapping[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    if not isinstance(arguments, str | None):
        arguments = orjson.dumps(arguments).decode()
    return {
        "id": call.get("id") or "",
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments or "{}"},
    }


def _text(value: Any) -> str:
    """Return content as text; some providers send a list of parts."""
    if isinstance(value, list):
        return "".join(part.get("text") or "" for part in value if isinstance(part, dict))
    return value if isinstance(value, str) else ""


def _logprobs(choice: Any) -> tuple[Mapping[str, Any], ...]:
    return tuple((choice.get("logprobs") or {}).get("content") or ())


def _finish_reason(value: Any, *, called: bool) -> FinishReason:
    if value in {"length", "content_filter"}:
        return "length" if value == "length" else "content_filter"
    return "tool_calls" if called else "stop"


def _usage(value: Any) -> Usage | None:
    if not value:
        return None
    return Usage(
        prompt_tokens=value.get("prompt_tokens") or 0,
        output_tokens=value.get("completion_tokens") or 0,
        cached_tokens=(value.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        reasoning_tokens=(value.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0,
    )


def _seconds(value: str | None) -> float | None:
    """Read a Retry-After in seconds; a date is not worth a clock of one's own."""
    return float(value) if value is not None and value.strip().isdecimal() else None
