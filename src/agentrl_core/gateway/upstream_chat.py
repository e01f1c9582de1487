"""Write requests to upstreams and read their replies, as chat completions with the deviations that providers have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs
import orjson

from agentrl_core.errors import RequestError
from agentrl_core.gateway.call_types import TokenUsage
from agentrl_core.gateway.dialects.openai_fields import was_cut

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.gateway.call_types import ChatRequest
    from agentrl_core.types import Message

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter"]

_MOST_TOKENS = 1 << 53
"""Bound of a provider's token counts; every JSON reader takes integers up to here."""
_REPLY_KEYS = frozenset({"content", "refusal", "tool_calls", "reasoning_content", "reasoning"})
"""Keys of which every message of a reply has at least one, perhaps null; else it would pass for an empty reply."""
_MESSAGE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id")
"""Keys of a message that are sent; providers refuse others, such as the reasoning of earlier turns."""


class UnreadableError(Exception):
    """Failure to read a provider's reply as a chat completion; the message says why."""


UNREADABLE = (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError, UnreadableError)
"""Exceptions raised while reading a body that is no chat completion."""


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


def body_of(request: ChatRequest, model: str, *, stream: bool) -> dict[str, Any]:
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
    options = {
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
    body |= {name: value for name, value in options.items() if value is not None}
    return body | _tools(request)


def body_of_rest(body: Mapping[str, Any], wanted: int, done: int) -> bytes:
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


def read_reply(body: Any, *, most: int) -> tuple[list[UpstreamPiece], TokenUsage | None]:
    """Return the choices of a reply, ordered by index, and its usage.

    There may be fewer than `most` choices. `UnreadableError` if there is none, or one that was not asked for.
    """
    found: dict[int, UpstreamPiece] = {}
    for position, choice in enumerate(body["choices"]):
        index = _index(choice, position, most)
        if index in found:
            raise UnreadableError(f"sent choice {index} twice")
        message = choice["message"]
        # Else a body of another format would pass for an empty reply of the model.
        if message.keys().isdisjoint(_REPLY_KEYS):
            raise UnreadableError("sent a message without content, refusal, reasoning or tool calls")
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
        raise UnreadableError("answered without any choice")
    return [found[index] for index in sorted(found)], _usage(body.get("usage"))


def _index(choice: Any, position: int, most: int) -> int:
    """Return the index of a choice, which is its position if the provider sends none."""
    index = choice.get("index")
    index = position if index is None else index
    if type(index) is not int or not 0 <= index < most:
        raise UnreadableError(f"sent a choice with the index {index!r:.40}, but was asked for {most} from index 0 on")
    return index


class StreamedPieces:
    """Reads the events of a stream; holds the fragments of a tool call until the call is complete."""

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._calls: dict[int, dict[int, _GrowingCall]] = {}
        self._called: set[int] = set()
        self._begun: set[int] = set()
        self._finished: set[int] = set()

    def count_finished(self) -> int:
        """Return how many choices the stream completed.

        `UnreadableError` if a choice was cut off, or if the completed ones are not numbered from 0 without a gap.
        """
        if not self._finished:
            raise UnreadableError("ended its stream without a finish reason")
        expected = set(range(len(self._finished)))
        if self._finished != expected or self._begun - expected:
            raise UnreadableError(
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
            raise UnreadableError(f"sent a tool call with the index {index!r:.40}")
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
        raise UnreadableError("sent a tool call without a name, or with an id that is no string")
    if not isinstance(arguments, str | None):
        arguments = orjson.dumps(arguments).decode()
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments or "{}"}}


def _text(value: Any) -> str:
    """Return content as text; some providers send a list of parts."""
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value)
    # A wrong type must not pass for an empty reply of the model.
    if value is not None and not isinstance(value, str):
        raise UnreadableError(f"sent content of type {type(value).__name__}")
    return value or ""


def _logprobs(choice: Any) -> tuple[Mapping[str, Any], ...]:
    entries = tuple((choice.get("logprobs") or {}).get("content") or ())
    if not all(isinstance(entry, dict) for entry in entries):
        raise UnreadableError("sent logprobs whose entries are no objects")
    return entries


def _finish_reason(value: Any, *, called: bool) -> FinishReason:
    # Not one of OpenAI's reasons, but brokers of several providers send it in a reply with status 200.
    if value == "error":
        raise UnreadableError("broke off with the finish reason error")
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


def sum_usage(one: TokenUsage | None, other: TokenUsage | None) -> TokenUsage | None:
    """Return the sum of two counts; None if both are unknown."""
    if one is None or other is None:
        return one or other
    return TokenUsage(
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
        cached_tokens=one.cached_tokens + other.cached_tokens,
        reasoning_tokens=one.reasoning_tokens + other.reasoning_tokens,
    )
