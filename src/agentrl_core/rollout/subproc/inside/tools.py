"""Tools of the run for an agent in a worker: each request is a message to the run, which does and records it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Asking:
    """Requests of one episode to the run, from any thread, until `close`.

    `send` sends a message to the run; it may be called from any thread.
    """

    def __init__(self, number: str, send: Callable[[dict[str, Any]], None]) -> None:
        self.number, self._send = number, send
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, concurrent.futures.Future[Any]] | None = {}

    def ask(self, method: str, **given: Any) -> concurrent.futures.Future[Any]:
        """Send a request and return its future answer; `LookupError` after the end of the episode."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        # The lock is held while the message is sent: after `close` no request of this episode follows.
        with self._lock:
            if self._waiting is None:
                raise LookupError("the episode has ended, and its tools with it")
            call = next(self._numbers)
            self._waiting[call] = future
            self._send({"op": "ask", "id": self.number, "call": call, "method": method, "given": given})
        return future

    def told(self, answer: Mapping[str, Any]) -> None:
        """Take the answer of the run to one of the requests."""
        with self._lock:
            future = None if self._waiting is None else self._waiting.pop(answer["call"], None)
        # The agent may have given up waiting.
        if future is not None and future.set_running_or_notify_cancel():
            if "error" in answer:
                future.set_exception(AskError(*answer["error"]))
            else:
                future.set_result(answer["value"])

    def close(self) -> None:
        """Refuse further requests, and cancel those that wait."""
        with self._lock:
            waiting, self._waiting = self._waiting or {}, None
        for future in waiting.values():
            future.cancel()


class AskError(Exception):
    """The run could not do what was asked: `kind` is the name of its error's class."""

    def __init__(self, kind: str, message: str, server: str = "") -> None:
        super().__init__(message)
        self.kind, self.server = kind, server


class Shown:
    """A tool call that has ended, as the agent gets it."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        self.id, self.name, self.outcome = told["id"], told["name"], told["outcome"]
        self.message: dict[str, Any] = told["message"]
        """Tool message in OpenAI's shape."""
        self.is_error, self.content, self.structured = told["is_error"], told["content"], told["structured"]


class WorkerTools:
    """Tools of the episode, for an agent in an interpreter without agentrl: the methods of `api.tools.EpisodeTools`.

    Descriptions of tools are dicts, results are `Shown`. What is refused or lost raises `AskError`. A sync agent calls
    `asyncio.run(tools.call(…))`.
    """

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    async def ask(self, method: str, **given: Any) -> Any:
        """Return the run's answer to a request."""
        return await asyncio.wrap_future(self._asking.ask(method, **given))

    async def specs(self) -> Sequence[Any]:
        """Return the tools: dicts with `name`, `description`, `parameters`, `read_only` and `idempotent`."""
        found: Sequence[Any] = await self.ask("specs")
        return found

    async def as_openai(self) -> Any:
        """Return the tools for `chat.completions.create(tools=…)`."""
        return await self.ask("as_openai")

    async def as_openai_responses(self) -> Any:
        """Return the tools for `responses.create(tools=…)`."""
        return await self.ask("as_openai_responses")

    async def as_anthropic(self) -> Any:
        """Return the tools for `messages.create(tools=…)`."""
        return await self.ask("as_anthropic")

    async def call(self, name: str, arguments: Any, *, id: str = "", messages: Sequence[Any] = ()) -> Any:  # noqa: A002
        """Call a tool; `arguments` may be the JSON text that the model wrote."""
        return Shown(await self.ask("call", name=name, arguments=_text(arguments), id=id, messages=_plain(messages)))

    async def call_all(self, message: Any, *, messages: Sequence[Any] = ()) -> Any:
        """Run all tool calls of an assistant message at the same time; return the tool messages in its order."""
        calls = [_call(item) for item in _member(message, "tool_calls") or ()]
        return await self.ask("call_all", calls=calls, messages=_plain(messages))


def _call(item: Any) -> dict[str, Any]:
    function = _member(item, "function")
    arguments = _member(function, "arguments")
    called = {"name": str(_member(function, "name") or ""), "arguments": "" if arguments is None else _text(arguments)}
    return {"id": str(_member(item, "id") or ""), "function": called}


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _text(arguments: Any) -> str:
    """Return arguments as JSON; what JSON lacks becomes a text that is none, which the run then refuses."""
    if isinstance(arguments, str):
        return arguments
    try:
        return json.dumps(arguments)
    except (TypeError, ValueError):
        return repr(arguments)


def _plain(messages: Sequence[Any]) -> Any:
    """Return a conversation as JSON values; objects of an SDK become their text."""
    return json.loads(json.dumps(list(messages), default=_dumped))


def _dumped(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else str(value)
