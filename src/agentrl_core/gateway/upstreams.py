"""Ask other providers for the replies of models that are not the policy: judges, user simulators, summarizers.

They are spoken to in OpenAI's chat completions. What they answer is text: recorded, never trained.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs
import orjson

from agentrl_core.errors import RequestError
from agentrl_core.gateway.dialects.openai_fields import was_cut
from agentrl_core.gateway.exchange import Usage
from agentrl_core.http.backoff import LATER, Backoff, retry_after_s
from agentrl_core.http.server_client import ExchangeError, ServerClient, ServerReply, server_sent_events

if TYPE_CHECKING:
    from agentrl_core.config.schema import UpstreamConfig
    from agentrl_core.gateway.exchange import ChatRequest
    from agentrl_core.types import Message

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter"]

_OK = 200
_OWN_FAULTS = frozenset({400, 404, 409, 413, 422})
"""Statuses that are about the agent's request and reach it as they are."""
_TOO_MANY = 429
_OVERLOADED = frozenset({503, 529})
_TIMED_OUT = frozenset({408, 504, 522, 524})
_UNAUTHORIZED = frozenset({401, 403})
_LONGEST_WAIT_S = 20.0
"""A provider that wants more time before a retry is not waited for: the agent is told."""
_MOST_STREAMED_BYTES = 64 << 20
"""Of a whole stream; one event of it, or a reply that is not streamed, is bounded by `MOST_BYTES`."""
_MOST_TOKENS = 1 << 53
"""Of what a provider counts: any JSON reader takes whole numbers up to here."""
_MOST_SHOWN_CHARS = 500


class _UnreadableError(Exception):
    """A reply is no chat completion; the message says why."""


_UNREADABLE = (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError, _UnreadableError)
"""What reading a body that is no chat completion raises."""
_SAYS = frozenset({"content", "refusal", "tool_calls", "reasoning_content", "reasoning"})
"""Keys of a message of which it has one, be it null."""
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

    def __init__(
        self, name: str, config: UpstreamConfig, *, backoff: Backoff, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self.name = name
        self._config = config
        self._backoff = backoff
        self._sleep = sleep
        self._client = ServerClient(
            config.url,
            proxy=config.proxy,
            headers=self._authorization,
            silence_s=config.timeout_s,
            retries=0,  # `_begun` counts them together with those after a status
        )

    async def complete(self, request: ChatRequest) -> tuple[UpstreamPiece, ...]:
        """Return the whole reply: one piece per choice, the usage on the last."""
        body = _body(request, self._config.model or self.name, stream=False)
        choices: list[UpstreamPiece] = []
        usage: Usage | None = None
        while len(choices) < request.n:  # a provider that knows no `n` is asked for one at a time
            reply = await self._begun(_body_of_rest(body, request.n, len(choices)))
            try:
                data = await reply.read()
                found, used = _whole(orjson.loads(data), most=request.n - len(choices))
            except ExchangeError as error:
                raise self._lost(error) from error
            except _UNREADABLE as error:
                raise self._unreadable(reply, error) from error
            finally:
                reply.close()
            choices += [attrs.evolve(piece, choice=len(choices) + index) for index, piece in enumerate(found)]
            usage = _sum(usage, used)
        return (*choices[:-1], attrs.evolve(choices[-1], usage=usage))

    async def stream(self, request: ChatRequest) -> AsyncGenerator[UpstreamPiece, None]:
        """Yield the reply as it comes; a tool call comes whole."""
        body = _body(request, self._config.model or self.name, stream=True)
        done, used = 0, None
        while done < request.n:
            reply = await self._begun(_body_of_rest(body, request.n, done))
            pieces, usage = _Pieces(most=request.n - done), used
            events = server_sent_events(reply, most_bytes=_MOST_STREAMED_BYTES)
            try:
                async with aclosing(events):
                    async for data in events:
                        for piece in self._read(pieces, reply, data):
                            if piece.usage is not None:  # of this stream so far
                                usage = _sum(used, piece.usage)
                                piece = attrs.evolve(piece, usage=usage)  # noqa: PLW2901
                            yield attrs.evolve(piece, choice=piece.choice + done)
                done, used = done + pieces.count_finished(), usage
            except ExchangeError as error:
                raise self._lost(error) from error
            except _UnreadableError as error:
                raise self._failure(502, "upstream_error", str(error)) from error
            finally:
                reply.close()

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
        """Return a reply that began with status 200, after retries where they may help; the caller closes it.

        A call that the provider may have answered already is sent again, too: a chat completion changes nothing there,
        and is paid once more at worst.
        """
        for attempt in range(self._config.max_retries + 1):
            asked_s: float | None = None
            try:
                reply = await self._client.request("POST", "/chat/completions", body)
                if reply.status == _OK:
                    return reply
                with reply:
                    refusal = self._refusal(reply.status, reply.headers, await reply.read_beginning())
                again, asked_s = reply.status in LATER, retry_after_s(reply.headers)
            except ExchangeError as error:
                refusal, again = self._lost(error), error.fault in {"connect", "broken"}
            wait_s = self._backoff.wait_s(attempt, asked_s)
            if not again or attempt == self._config.max_retries or wait_s > _LONGEST_WAIT_S:
                raise refusal
            await self._sleep(wait_s)
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
            return self._failure(504, "upstream_timeout", f"said nothing for {self._config.timeout_s:g} s")
        if error.fault == "too large":
            return self._failure(502, "upstream_error", f"sent too much: {error}")
        return self._failure(502, "upstream_error", f"could not be asked: {error}")

    def _unreadable(self, reply: ServerReply, error: Exception) -> RequestError:
        if isinstance(error, _UnreadableError):
            return self._failure(502, "upstream_error", str(error))
        kind = reply.headers.get("content-type", "no content type")
        if packed := reply.headers.get("content-encoding", "").strip():
            kind += f" in the encoding {packed}, which it was asked not to use,"
        shown = f"{type(error).__name__}: {error}"[:_MOST_SHOWN_CHARS]
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


def _body_of_rest(body: Mapping[str, Any], wanted: int, done: int) -> bytes:
    """Ask for the replies that have not come yet, with another seed: the same one would bring the same reply again."""
    rest = dict(body)
    if done:
        rest.pop("n", None)
        if wanted - done > 1:
            rest["n"] = wanted - done
        if type(rest.get("seed")) is int:
            rest["seed"] += done
    return orjson.dumps(rest)


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


def _whole(body: Any, *, most: int) -> tuple[list[UpstreamPiece], Usage | None]:
    """Read a reply of at most `most` choices, which may have fewer; they are numbered in their order."""
    found: dict[int, UpstreamPiece] = {}
    for position, choice in enumerate(body["choices"]):
        index = _index(choice, position, most)
        if index in found:
            raise _UnreadableError(f"sent choice {index} twice")
        message = choice["message"]
        if message.keys().isdisjoint(_SAYS):  # not to be taken for a blank reply
            raise _UnreadableError("sent a message that says nothing")
        calls = tuple(_call(call) for call in message.get("tool_calls") or ())
        found[index] = UpstreamPiece(
            choice=index,
            content=_text(message.get("content")) or _text(message.get("refusal")),
            reasoning=_text(message.get("reasoning_content") or message.get("reasoning")),
            tool_calls=calls,
            finish_reason=_finish_reason(choice.get("finish_reason"), called=bool(calls)),
            logprobs=_logprobs(choice),
        )
    if not found:
        raise _UnreadableError("answered without any choice")
    return [found[index] for index in sorted(found)], _usage(body.get("usage"))


def _index(choice: Any, position: int, most: int) -> int:
    """Return the number of a choice, which is its position where the provider does not number them."""
    index = choice.get("index")
    index = position if index is None else index
    if type(index) is not int or not 0 <= index < most:
        raise _UnreadableError(f"sent a choice with the index {index!r:.40} where it was asked for {most}")
    return index


class _Pieces:
    """Reads the events of a stream; the fragments of a tool call are held until it is whole."""

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._calls: dict[int, dict[int, _GrowingCall]] = {}
        self._called: set[int] = set()
        self._begun: set[int] = set()
        self._finished: set[int] = set()

    def count_finished(self) -> int:
        """Return how many choices came, those from 0 on; raises where one was cut off, or is missing among others."""
        if not self._finished:
            raise _UnreadableError("ended its stream without a finish reason")
        expected = set(range(len(self._finished)))
        if self._finished != expected or self._begun - expected:
            raise _UnreadableError(
                f"ended its stream after choices {sorted(self._finished)}, of {self._most} that it was asked for"
            )
        return len(self._finished)

    def read(self, event: Any) -> list[UpstreamPiece]:
        """Return what an event completes."""
        pieces = [piece for choice in event.get("choices") or () for piece in self._choice(choice)]
        usage = _usage(event.get("usage"))
        if usage is not None:
            last = pieces.pop() if pieces else UpstreamPiece()
            pieces.append(attrs.evolve(last, usage=usage))
        return pieces

    def _choice(self, choice: Any) -> list[UpstreamPiece]:
        number = _index(choice, 0, self._most)
        delta = {} if choice.get("delta") is None else choice["delta"]
        whole = [call for fragment in delta.get("tool_calls") or () for call in self._add(number, fragment)]
        reason = choice.get("finish_reason")
        if reason is not None:
            whole += self._close(number)
            self._finished.add(number)
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
        if piece == UpstreamPiece(choice=number):
            return []
        self._begun.add(number)
        return [piece]

    def _add(self, number: int, fragment: Any) -> list[Mapping[str, Any]]:
        """Append a fragment to its call; the first of another call ends the one before."""
        calls = self._calls.setdefault(number, {})
        index = fragment.get("index")
        index = max(calls, default=0) if index is None else index
        if type(index) is not int:
            raise _UnreadableError(f"sent a tool call with the index {index!r:.40}")
        done = self._close(number) if calls and index not in calls else []
        self._calls.setdefault(number, {}).setdefault(index, _GrowingCall()).add(fragment)
        return done

    def _close(self, number: int) -> list[Mapping[str, Any]]:
        return [call.whole() for call in self._calls.pop(number, {}).values()]


@attrs.define
class _GrowingCall:
    """A tool call that comes in fragments, which are joined once: at each of them, the cost would be quadratic."""

    id: str = ""
    names: list[str] = attrs.field(factory=list)
    arguments: list[str] = attrs.field(factory=list)

    def add(self, fragment: Any) -> None:
        function = fragment.get("function") or {}
        self.id = fragment.get("id") or self.id
        self.names.append(function.get("name") or "")
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            self.arguments = [orjson.dumps(arguments).decode()]
        elif isinstance(arguments, str):
            self.arguments.append(arguments)

    def whole(self) -> Mapping[str, Any]:
        return _call({"id": self.id, "function": {"name": "".join(self.names), "arguments": "".join(self.arguments)}})


def _call(call: Any) -> Mapping[str, Any]:
    function = call["function"]
    name, arguments, call_id = function["name"], function.get("arguments"), call.get("id") or ""
    if not isinstance(name, str) or not name or not isinstance(call_id, str):
        raise _UnreadableError("sent a tool call without a name, or with an id that is no text")
    if not isinstance(arguments, str | None):
        arguments = orjson.dumps(arguments).decode()
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments or "{}"}}


def _text(value: Any) -> str:
    """Return content as text; some providers send a list of parts."""
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value)
    if value is not None and not isinstance(value, str):  # not to be taken for a blank reply
        raise _UnreadableError(f"sent content of type {type(value).__name__}")
    return value or ""


def _logprobs(choice: Any) -> tuple[Mapping[str, Any], ...]:
    entries = tuple((choice.get("logprobs") or {}).get("content") or ())
    if not all(isinstance(entry, dict) for entry in entries):
        raise _UnreadableError("sent logprobs that are none")
    return entries


def _finish_reason(value: Any, *, called: bool) -> FinishReason:
    if value == "error":  # as brokers of several providers say it
        raise _UnreadableError("broke off with the finish reason error")
    if value in {"length", "content_filter"}:
        return "length" if value == "length" else "content_filter"
    return "tool_calls" if called else "stop"


def _usage(value: Any) -> Usage | None:
    if not value:
        return None
    return Usage(
        prompt_tokens=_count(value.get("prompt_tokens")),
        output_tokens=_count(value.get("completion_tokens")),
        cached_tokens=_count((value.get("prompt_tokens_details") or {}).get("cached_tokens")),
        reasoning_tokens=_count((value.get("completion_tokens_details") or {}).get("reasoning_tokens")),
    )


def _count(value: Any) -> int:
    """Return a number of tokens; 0 for what is none."""
    return value if type(value) is int and 0 <= value < _MOST_TOKENS else 0


def _sum(one: Usage | None, other: Usage | None) -> Usage | None:
    if one is None or other is None:
        return one or other
    return Usage(
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        cached_tokens=one.cached_tokens + other.cached_tokens,
        reasoning_tokens=one.reasoning_tokens + other.reasoning_tokens,
    )
