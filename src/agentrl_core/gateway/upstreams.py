"""HTTP client for upstreams: other parties' models that agents call as judges, user simulators or summarizers.

It speaks OpenAI's chat completions, retries, and checks every reply, since providers deviate from that API. It knows
neither sessions nor the store: `forwarding` records the replies. They are text, without token ids, and never trained.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs
import orjson

from agentrl_core.errors import RequestError
from agentrl_core.gateway.call_types import TokenUsage
from agentrl_core.gateway.dialects.openai_fields import was_cut
from agentrl_core.http.backoff import LATER, Backoff, RetryPolicy, TransientError, retry_after_s
from agentrl_core.http.server_client import ExchangeError, ServerClient, ServerReply, server_sent_events

if TYPE_CHECKING:
    from agentrl_core.config.schema import UpstreamConfig
    from agentrl_core.gateway.call_types import ChatRequest
    from agentrl_core.types import Message

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter"]

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
_MOST_TOKENS = 1 << 53
"""Bound of a provider's token counts; every JSON reader takes integers up to here."""
_MOST_SHOWN_CHARS = 500


class _UnreadableError(Exception):
    """Failure to read a provider's reply as a chat completion; the message says why."""


_UNREADABLE = (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError, _UnreadableError)
"""Exceptions raised while reading a body that is no chat completion."""
_SAYS = frozenset({"content", "refusal", "tool_calls", "reasoning_content", "reasoning"})
"""Keys of which every message of a reply has at least one, perhaps null; else it would pass for an empty reply."""
_MESSAGE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id")
"""Keys of a message that are sent; providers refuse others, such as the reasoning of earlier turns."""


@attrs.frozen(kw_only=True)
class UpstreamPiece:
    """New part of one reply; the whole reply if it is not streamed."""

    choice: int = 0
    """Index of the reply among the `n` ones."""
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """Complete calls in OpenAI's shape; the id is empty if the provider gave none."""
    finish_reason: FinishReason | None = None
    """Finish reason, on the last piece of each choice only."""
    logprobs: tuple[Mapping[str, Any], ...] = ()
    """Log-probabilities as the provider sent them, in OpenAI's form, one entry per token of the content."""
    usage: TokenUsage | None = None
    """Token counts, on the very last piece, if the provider sends them."""


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
        body = _body(request, self._config.model or self.name, stream=False)
        choices: list[UpstreamPiece] = []
        usage: TokenUsage | None = None
        # Providers that ignore `n` send one choice per request.
        while len(choices) < request.n:
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
        """Yield the reply piece by piece as it arrives; tool calls are yielded only when they are complete."""
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
                            # A provider may send a growing usage with each event: the last one counts for this stream,
                            # and `used` has the sum of the streams before it.
                            if piece.usage is not None:
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
        raise TransientError(refusal, asked_s=retry_after_s(reply.headers)) if reply.status in LATER else refusal

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
        if isinstance(error, _UnreadableError):
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


# Asking.


def _body(request: ChatRequest, model: str, *, stream: bool) -> dict[str, Any]:
    """Build the JSON body of a request; options that the agent left out are left to the provider."""
    if request.prompts:
        raise RequestError(
            400, "unsupported_value", f"model {model!r} takes chat messages only; send messages", param="prompt"
        )
    # Options unknown to us are chat completions' own, so this provider may know them; other APIs' mean nothing to it.
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
    """Encode the request for the replies that are still missing.

    It has another seed, because the same seed would give the same reply again.
    """
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
        # Leaving out the other tools has the effect of `allowed_tools`.
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
        f"model {request.model!r} is an upstream: upstreams take JSON schemas only, not {grammar.kind}",
        param="response_format",
    )


# Reading.


def _whole(body: Any, *, most: int) -> tuple[list[UpstreamPiece], TokenUsage | None]:
    """Return the choices of a reply, ordered by index, and its usage.

    There may be fewer than `most` choices. `_UnreadableError` if there is none, or one that was not asked for.
    """
    found: dict[int, UpstreamPiece] = {}
    for position, choice in enumerate(body["choices"]):
        index = _index(choice, position, most)
        if index in found:
            raise _UnreadableError(f"sent choice {index} twice")
        message = choice["message"]
        # Else a body of another format would pass for an empty reply of the model.
        if message.keys().isdisjoint(_SAYS):
            raise _UnreadableError("sent a message without content, refusal, reasoning or tool calls")
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
    """Return the index of a choice, which is its position if the provider sends none."""
    index = choice.get("index")
    index = position if index is None else index
    if type(index) is not int or not 0 <= index < most:
        raise _UnreadableError(f"sent a choice with the index {index!r:.40}, but was asked for {most} from index 0 on")
    return index


class _Pieces:
    """Reads the events of a stream; holds the fragments of a tool call until the call is complete."""

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._calls: dict[int, dict[int, _GrowingCall]] = {}
        self._called: set[int] = set()
        self._begun: set[int] = set()
        self._finished: set[int] = set()

    def count_finished(self) -> int:
        """Return how many choices the stream completed.

        `_UnreadableError` if a choice was cut off, or if the completed ones are not numbered from 0 without a gap.
        """
        if not self._finished:
            raise _UnreadableError("ended its stream without a finish reason")
        expected = set(range(len(self._finished)))
        if self._finished != expected or self._begun - expected:
            raise _UnreadableError(
                f"ended its stream after choices {sorted(self._finished)}, of {self._most} that it was asked for"
            )
        return len(self._finished)

    def read(self, event: Any) -> list[UpstreamPiece]:
        """Return the pieces that an event completes; the last one has the usage if the event does."""
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
        """Append a fragment to its tool call, and return the calls that it completes.

        The first fragment of a new call completes the calls before it, as no event marks the end of a call.
        """
        calls = self._calls.setdefault(number, {})
        # Without an index, a fragment belongs to the latest call.
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
    """Tool call that arrives in fragments; they are joined once at the end, since joining each has quadratic cost."""

    id: str = ""
    names: list[str] = attrs.field(factory=list)
    arguments: list[str] = attrs.field(factory=list)

    def add(self, fragment: Any) -> None:
        function = fragment.get("function") or {}
        self.id = fragment.get("id") or self.id
        self.names.append(function.get("name") or "")
        # Some providers send the arguments as one object instead of fragments of its text.
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
        raise _UnreadableError("sent a tool call without a name, or with an id that is no string")
    if not isinstance(arguments, str | None):
        arguments = orjson.dumps(arguments).decode()
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments or "{}"}}


def _text(value: Any) -> str:
    """Return content as text; some providers send a list of parts."""
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value)
    # A wrong type must not pass for an empty reply of the model.
    if value is not None and not isinstance(value, str):
        raise _UnreadableError(f"sent content of type {type(value).__name__}")
    return value or ""


def _logprobs(choice: Any) -> tuple[Mapping[str, Any], ...]:
    entries = tuple((choice.get("logprobs") or {}).get("content") or ())
    if not all(isinstance(entry, dict) for entry in entries):
        raise _UnreadableError("sent logprobs whose entries are no objects")
    return entries


def _finish_reason(value: Any, *, called: bool) -> FinishReason:
    # Not one of OpenAI's reasons, but brokers of several providers send it in a reply with status 200.
    if value == "error":
        raise _UnreadableError("broke off with the finish reason error")
    if value in {"length", "content_filter"}:
        return "length" if value == "length" else "content_filter"
    # Whether there are calls decides, not the provider's word for it.
    return "tool_calls" if called else "stop"


def _usage(value: Any) -> TokenUsage | None:
    if not value:
        return None
    return TokenUsage(
        prompt_tokens=_count(value.get("prompt_tokens")),
        output_tokens=_count(value.get("completion_tokens")),
        cached_tokens=_count((value.get("prompt_tokens_details") or {}).get("cached_tokens")),
        reasoning_tokens=_count((value.get("completion_tokens_details") or {}).get("reasoning_tokens")),
    )


def _count(value: Any) -> int:
    """Return a token count; 0 if the value is no valid count."""
    return value if type(value) is int and 0 <= value < _MOST_TOKENS else 0


def _sum(one: TokenUsage | None, other: TokenUsage | None) -> TokenUsage | None:
    if one is None or other is None:
        return one or other
    return TokenUsage(
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        cached_tokens=one.cached_tokens + other.cached_tokens,
        reasoning_tokens=one.reasoning_tokens + other.reasoning_tokens,
    )
