"""One model on one server: a call of it, its answer read, and what kind of failure it was where there is none."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import attrs

from agentrl_core.api.http import LATER, ExchangeError, ServerClient, retry_after_s
from agentrl_judge.verdict import GarbageError, read_verdict, response_format

if TYPE_CHECKING:
    from agentrl_judge.breaker import Breaker
    from agentrl_judge.settings import ModelSettings
    from agentrl_judge.verdict import Opinion, Scale

logger = logging.getLogger(__name__)

Failure: TypeAlias = Literal["down", "refused", "timeout", "garbage"]
"""`refused`: this one request, by a server that is up."""

_FORMS = ("json_schema", "json_object", "text")
"""How a reply is held to its form, the strictest first; a server that refuses one gets the next."""
_LARGEST_BYTES = 1 << 20
"""Of a reply: a verdict is two sentences, thoughts beside it some thousand words."""
_MOST_TOKENS = 1 << 53
"""Of what a server counts: whole numbers that any reader of JSON takes, and a price can be multiplied with."""
_MOST_SHOWN_CHARS = 300
_OK = 200
_REFUSED = frozenset({400, 413, 415, 422, 501})
"""Statuses about this one request: they say nothing of the server's health."""
_WRONG_KEY = 401
_UNAUTHORIZED = frozenset({_WRONG_KEY, 403})


class CallError(Exception):
    """A call gave no verdict; the message names no key."""

    def __init__(self, kind: Failure, message: str, *, again: bool, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.kind: Failure = kind
        self.again = again
        """Whether the same model may do better."""
        self.wait_s = wait_s
        """What the server asked for before that."""


@attrs.frozen(kw_only=True)
class _Answer:
    """A reply with status and body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def read_json(self) -> Any:
        """Return the body; ValueError where it is not JSON."""
        try:
            return json.loads(self.body)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


class JudgeModel:
    """Asks one model; remembers which form its server takes, and whether it is up.

    `calls` of `ask` gets one entry per request that went out: what it cost, and what came of it.
    """

    def __init__(
        self,
        settings: ModelSettings,
        *,
        scale: Scale,
        temperature: float | None,
        timeout_s: float,
        max_concurrency: int,
        breaker: Breaker,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.breaker = breaker
        self._scale: Scale = scale
        self._temperature = temperature
        self._timeout_s = timeout_s
        self._clock = clock
        self._form = 0
        self._proven = False
        self._max_concurrency = max_concurrency
        self._places: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        self._client = ServerClient(
            settings.base_url,
            proxy=settings.proxy,
            headers=self._authorization,
            max_connections=max_concurrency,
            silence_s=timeout_s,
            retries=0,
        )

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait until one of the model's calls is free to make."""
        loop = asyncio.get_running_loop()
        async with self._places.setdefault(loop, asyncio.Semaphore(self._max_concurrency)):
            yield

    async def ask(self, messages: list[dict[str, str]], calls: list[dict[str, Any]]) -> Opinion:
        """Return the model's verdict, or raise `CallError`; the breaker has been asked, and is told."""
        try:
            opinion = await self._opinion(messages, calls)
        except CallError as error:
            if error.kind == "garbage":
                self.breaker.succeeded()  # it answers
            elif error.kind != "refused":
                self.breaker.failed()
            raise
        else:
            self.breaker.succeeded()
            return opinion
        finally:
            self.breaker.released()

    async def known_models(self, timeout_s: float) -> list[str] | None:
        """Return the names that the server has models by; None where it does not tell. Raises `CallError`."""
        answer = await self._exchange("GET", "/models", b"", min(timeout_s, self._timeout_s))
        if answer.status == _WRONG_KEY:  # 403 may be about this route alone: keys can be made for chats only
            raise CallError("down", self._unauthorized(answer.status), again=False)
        if answer.status in LATER:
            raise CallError("down", f"answered with status {answer.status}", again=True)
        try:
            found = answer.read_json()
            return [str(item["id"]) for item in found["data"]] if answer.status == _OK else None
        except (ValueError, KeyError, TypeError):
            return None

    # One request after the other, until the server takes the form.

    async def _opinion(self, messages: list[dict[str, str]], calls: list[dict[str, Any]]) -> Opinion:
        form = self._form
        while True:
            call: dict[str, Any] = {
                "model": self.settings.model,
                "server": self.settings.base_url,
                "format": _FORMS[form],
            }
            calls.append(call)
            began = self._clock()
            try:
                answer = await self._exchange("POST", "/chat/completions", self._body(messages, form), self._timeout_s)
                easier = self._easier(form, answer)
                if easier is None:
                    opinion = self._read(answer, call)
                    self._settle(form)
                    return opinion
                call["error"] = str(self._refusal(answer))
                form = easier
            except CallError as error:
                call["error"] = str(error)
                raise
            except asyncio.CancelledError:
                call["error"] = "given up: the verdict was out of time, or the episode was cancelled"
                raise
            finally:
                call["seconds"] = round(self._clock() - began, 3)

    def _easier(self, form: int, answer: _Answer) -> int | None:
        """Return the form to ask in where the server may have refused this one; None where there is none."""
        if self._proven or answer.status not in _REFUSED:
            return None
        if self._temperature is not None and b"temperature" in answer.body:  # models that reason take their own only
            logger.warning("judge %s refuses temperature %g; it is left out", self.settings.label, self._temperature)
            self._temperature = None
            return form
        return form + 1 if form + 1 < len(_FORMS) else None

    def _body(self, messages: list[dict[str, str]], form: int) -> bytes:
        body: dict[str, Any] = {"model": self.settings.model, "messages": messages, "stream": False}
        if self._temperature is not None:
            body["temperature"] = self._temperature
        if _FORMS[form] == "json_schema":
            body["response_format"] = response_format(self._scale)
        elif _FORMS[form] == "json_object":
            body["response_format"] = {"type": "json_object"}
        return json.dumps({**body, **self.settings.extra_body}).encode()

    def _settle(self, form: int) -> None:
        if form != self._form:
            logger.warning(
                "judge %s takes no response_format of type %s; it is asked with %s",
                self.settings.label,
                _FORMS[self._form],
                _FORMS[form],
            )
        self._form, self._proven = form, True

    async def _exchange(self, method: str, path: str, body: bytes, timeout_s: float) -> _Answer:
        try:
            async with asyncio.timeout(timeout_s) as limit:
                with await self._client.request(method, path, body) as reply:
                    body = await reply.read(_LARGEST_BYTES)
                    return _Answer(status=reply.status, headers=reply.headers, body=body)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise CallError("timeout", f"no reply within {timeout_s:g} s", again=True) from error
        except ExchangeError as error:
            if error.fault == "too large":
                raise CallError("garbage", f"its reply has more than {_LARGEST_BYTES} bytes", again=True) from error
            kind: Failure = "timeout" if error.fault == "silent" else "down"
            raise CallError(kind, self._without_key(str(error)), again=True) from error

    def _authorization(self) -> Mapping[str, str]:
        key = self.settings.api_key
        if variable := self.settings.api_key_env:
            key = os.environ.get(variable, "").strip()
            if not key or not key.isascii() or not key.isprintable():
                state = "holds what no header can" if key else "is empty or not set"
                raise CallError("down", f"its key is missing: the variable {variable} {state}", again=False)
        return {"Authorization": f"Bearer {key}"} if key else {}

    # Reading.

    def _read(self, answer: _Answer, call: dict[str, Any]) -> Opinion:
        if answer.status != _OK:
            raise self._refusal(answer)
        try:
            whole = answer.read_json()
            choice = whole["choices"][0]
            content, finish_reason = choice["message"].get("content"), choice.get("finish_reason")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CallError("garbage", "its reply is no chat completion", again=True) from error
        prompt_tokens, output_tokens = _tokens(whole, "prompt_tokens"), _tokens(whole, "completion_tokens")
        call["reply"] = content
        call["prompt_tokens"], call["output_tokens"] = prompt_tokens, output_tokens
        call["cost_usd"] = self.settings.cost(prompt_tokens, output_tokens)
        if finish_reason not in {"stop", None}:
            raise CallError("garbage", f"its reply ended with finish_reason {finish_reason!r:.40}", again=True)
        if not isinstance(content, str):
            raise CallError("garbage", "its reply holds no text", again=True)
        try:
            return read_verdict(content, self._scale)
        except GarbageError as error:
            raise CallError("garbage", f"its reply is no verdict: {error}", again=True) from error

    def _refusal(self, answer: _Answer) -> CallError:
        if answer.status in _UNAUTHORIZED:  # what such a server says may quote the key
            return CallError("down", self._unauthorized(answer.status), again=False)
        said = " ".join(answer.body[:4096].decode(errors="replace").split())
        said = f"status {answer.status}: {self._without_key(said)[:_MOST_SHOWN_CHARS]}"
        kind: Failure = "refused" if answer.status in _REFUSED else "down"
        return CallError(kind, said, again=answer.status in LATER, wait_s=retry_after_s(answer.headers) or 0.0)

    def _unauthorized(self, status: int) -> str:
        variable = self.settings.api_key_env
        return f"refused {f'the key in {variable}' if variable else 'its api_key'} (status {status})"

    def _without_key(self, said: str) -> str:
        key = os.environ.get(self.settings.api_key_env or "", "").strip() or self.settings.api_key
        return said.replace(key, "…") if key else said


def _tokens(whole: Any, name: str) -> int:
    usage = whole.get("usage")
    found = usage.get(name) if isinstance(usage, dict) else None
    return found if type(found) is int and 0 <= found < _MOST_TOKENS else 0
