"""Scripted judge for tests: an OpenAI-compatible server on loopback that replies as the test says."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Self, TypeAlias

from aiohttp import web

Body: TypeAlias = Mapping[str, Any]
"""Body of a request for a chat completion."""
Reply: TypeAlias = "str | Mapping[str, Any] | web.Response | Callable[[Body], Any]"
"""Text of the reply, a whole chat completion, an HTTP response, or a function of the body that returns one of them."""

_BLOCK = re.compile(r"\[BEGIN (\w+) (\w+)\]\n(.*?)\n\[END \1 \2\]", re.DOTALL)


class JudgeServer:
    """Answers each request with the next of `replies`, then always with the last one; keeps all bodies and headers.

    `models` are the names that `GET /v1/models` lists, or the HTTP status that it returns instead. With the port 0 any
    free port is taken.

        async with JudgeServer(verdict("correct")).up() as server:
            judge = Judge(models=[server.model])
    """

    def __init__(self, *replies: Reply, models: Sequence[str] | int = ("judge-1",), port: int = 0) -> None:
        self._replies: list[Reply] = list(replies or [honest])
        self._models = models
        self._port = port
        self.bodies: list[Body] = []
        self.headers: list[Mapping[str, str]] = []

    @contextlib.asynccontextmanager
    async def up(self) -> AsyncIterator[Self]:
        """Serve until the end of the block; a second use serves on the same port."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._list)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", self._port).start()
            self._port = runner.addresses[0][1]
            yield self
        finally:
            await runner.cleanup()

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def model(self) -> dict[str, str]:
        """Entry for a judge's option `models`."""
        return {"base_url": self.url, "model": "judge-1"}

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(request.headers)
        reply: Any = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if callable(reply):
            reply = reply(body)
        if inspect.isawaitable(reply):
            reply = await reply
        if isinstance(reply, web.Response):
            return reply
        return web.json_response(completion(reply) if isinstance(reply, str) else reply)

    async def _list(self, request: web.Request) -> web.Response:
        self.headers.append(request.headers)
        if isinstance(self._models, int):
            return web.Response(status=self._models)
        return web.json_response({"data": [{"id": name} for name in self._models]})


def blocks(body: Body) -> dict[str, str]:
    """Return the texts in a judge's prompt by name, each found between its two lines with the boundary."""
    return {name: text for name, _, text in _BLOCK.findall(body["messages"][-1]["content"])}


def honest(body: Body) -> str:
    """Return the verdict `correct` if the answer is the same text as the reference, else `incorrect`."""
    texts = blocks(body)
    return verdict("correct" if texts["ANSWER"].strip() == texts["REFERENCE"].strip() else "incorrect")


def verdict(word: str, reasoning: str = "compared") -> str:
    """Return the text of a reply on the binary scale."""
    return json.dumps({"reasoning": reasoning, "verdict": word})


def completion(content: str | None, *, finish_reason: str = "stop", usage: tuple[int, int] = (100, 20)) -> Body:
    """Return the body of a chat completion."""
    message = {"role": "assistant", "content": content}
    choices = [{"index": 0, "message": message, "finish_reason": finish_reason}]
    return {"choices": choices, "usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]}}


def failing(status: int, said: str = "overloaded", *, retry_after: str | None = None) -> Callable[[Body], web.Response]:
    """Return a reply with an HTTP error."""
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return lambda _: web.json_response({"error": {"message": said}}, status=status, headers=headers)
