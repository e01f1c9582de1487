"""Client of one judge model on one server: make a call, read the verdict, classify the failure.

`panel.py` decides by that class whether to retry the call or to ask the next model.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import attrs

from agentrl_core.api.http import RETRYABLE_STATUSES, ExchangeError, ServerClient, retry_after_s
from agentrl_judge.verdict import GarbageError, read_verdict, response_format

if TYPE_CHECKING:
    from agentrl_judge.breaker import Breaker
    from agentrl_judge.settings import ModelSettings
    from agentrl_judge.verdict import Opinion, Scale

logger = logging.getLogger(__name__)

Failure: TypeAlias = Literal["down", "refused", "timeout", "garbage"]
"""Kind of failure. `refused`: a server that is up rejected this request; `garbage`: it replied without a verdict."""

_FORMS = ("json_schema", "json_object", "text")
"""Ways to hold a reply to the schema, the strictest first; if a server refuses one, the next is tried."""
_LARGEST_BYTES = 1 << 20
"""Largest reply. A verdict has two sentences, and thoughts beside it a few thousand words."""
_MOST_TOKENS = 1 << 53
"""Bound on token counts that a server reports: up to here every JSON reader and a float hold integers exactly."""
_MOST_SHOWN_CHARS = 300
"""Characters of a server's error message that are stored."""
_OK = 200
_REFUSED = frozenset({400, 413, 415, 422, 501})
"""Status codes about the request itself; they say nothing about the server's health."""
_WRONG_KEY = 401
_UNAUTHORIZED = frozenset({_WRONG_KEY, 403})


class CallError(Exception):
    """A call gave no verdict. The message never contains an API key."""

    def __init__(self, kind: Failure, message: str, *, again: bool, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.kind: Failure = kind
        self.again = again
        """True if a retry with the same model may succeed."""
        self.wait_s = wait_s
        """Seconds to wait before the retry, as the server asked for; 0 if it did not."""


@attrs.frozen(kw_only=True)
class _Answer:
    """An HTTP reply with its whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def read_json(self) -> Any:
        """Return the body. Raises ValueError if it is not JSON."""
        try:
            return json.loads(self.body)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


class JudgeModel:
    """Asks one model, and remembers which response format its server accepts and whether the server is up."""

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
        """Wait for one of the `max_concurrency` places for calls, and hold it."""
        # One semaphore per event loop, since an asyncio semaphore belongs to the loop that first waits for it.
        loop = asyncio.get_running_loop()
        async with self._places.setdefault(loop, asyncio.Semaphore(self._max_concurrency)):
            yield

    async def ask(self, messages: list[dict[str, str]], calls: list[dict[str, Any]]) -> Opinion:
        """Return the model's verdict, or raise `CallError`; report the outcome to the breaker.

        The caller must have been admitted by the breaker. `calls` gets one entry per request with its reply or error,
        duration, tokens and cost.
        """
        try:
            opinion = await self._opinion(messages, calls)
        except CallError as error:
            if error.kind == "garbage":
                self.breaker.succeeded()  # a server that replies is up, whatever it says
            elif error.kind != "refused":
                self.breaker.failed()
            raise
        else:
            self.breaker.succeeded()
            return opinion
        finally:
            self.breaker.released()

    async def known_models(self, timeout_s: float) -> list[str] | None:
        """Return the names of the server's models; None if it does not list them. Raises `CallError`."""
        answer = await self._exchange("GET", "/models", b"", min(timeout_s, self._timeout_s))
        # Only 401. A 403 may be about this route alone, because keys can be restricted to chat completions.
        if answer.status == _WRONG_KEY:
            raise CallError("down", self._unauthorized(answer.status), again=False)
        if answer.status in RETRYABLE_STATUSES:
            raise CallError("down", f"answered with status {answer.status}", again=True)
        try:
            found = answer.read_json()
            return [str(item["id"]) for item in found["data"]] if answer.status == _OK else None
        except (ValueError, KeyError, TypeError):
            return None

    # Requests in one form after the other, until the server accepts one.

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
                call["error"] = "cancelled: timeout_s of the judge was over, or the episode was cancelled"
                raise
            finally:
                call["seconds"] = round(self._clock() - began, 3)

    def _easier(self, form: int, answer: _Answer) -> int | None:
        """Return the form to try next if the server may have refused this one for its form; None if there is none."""
        # Once a form has worked, a refusal is about the request's content.
        if self._proven or answer.status not in _REFUSED:
            return None
        # Reasoning models accept only their own default temperature.
        if self._temperature is not None and b"temperature" in answer.body:
            logger.warning(
                "judge %s refuses temperature %g; calls no longer set it", self.settings.label, self._temperature
            )
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
                "judge %s does not accept response_format of type %s; calls use %s",
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
            # Only this call's own limit counts against the model.
            if not limit.expired():
                raise
            raise CallError("timeout", f"no reply within {timeout_s:g} s", again=True) from error
        except ExchangeError as error:
            if error.fault == "too large":
                raise CallError("garbage", f"the reply has more than {_LARGEST_BYTES} bytes", again=True) from error
            kind: Failure = "timeout" if error.fault == "silent" else "down"
            raise CallError(kind, self.settings.without_key(str(error)), again=True) from error

    def _authorization(self) -> Mapping[str, str]:
        try:
            key = self.settings.read_key()
        except ValueError as error:
            raise CallError("down", str(error), again=False) from None
        return {"Authorization": f"Bearer {key}"} if key else {}

    # Reading a reply.

    def _read(self, answer: _Answer, call: dict[str, Any]) -> Opinion:
        if answer.status != _OK:
            raise self._refusal(answer)
        try:
            whole = answer.read_json()
            choice = whole["choices"][0]
            content, finish_reason = choice["message"].get("content"), choice.get("finish_reason")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CallError("garbage", "the reply is not a chat completion", again=True) from error
        prompt_tokens, output_tokens = _tokens(whole, "prompt_tokens"), _tokens(whole, "completion_tokens")
        call["reply"] = content
        call["prompt_tokens"], call["output_tokens"] = prompt_tokens, output_tokens
        call["cost_usd"] = self.settings.cost(prompt_tokens, output_tokens)
        if finish_reason not in {"stop", None}:
            raise CallError("garbage", f"the reply ended with finish_reason {finish_reason!r:.40}", again=True)
        if not isinstance(content, str):
            raise CallError("garbage", "the reply has no text", again=True)
        try:
            return read_verdict(content, self._scale)
        except GarbageError as error:
            raise CallError("garbage", f"the reply is not a verdict: {error}", again=True) from error

    def _refusal(self, answer: _Answer) -> CallError:
        # The message of such a reply may quote the key, so it is not stored.
        if answer.status in _UNAUTHORIZED:
            return CallError("down", self._unauthorized(answer.status), again=False)
        said = " ".join(answer.body[:4096].decode(errors="replace").split())
        said = f"status {answer.status}: {self.settings.without_key(said)[:_MOST_SHOWN_CHARS]}"
        kind: Failure = "refused" if answer.status in _REFUSED else "down"
        return CallError(
            kind, said, again=answer.status in RETRYABLE_STATUSES, wait_s=retry_after_s(answer.headers) or 0.0
        )

    def _unauthorized(self, status: int) -> str:
        variable = self.settings.api_key_env
        return f"refused {f'the key in {variable}' if variable else 'its api_key'} (status {status})"


def _tokens(whole: Any, name: str) -> int:
    usage = whole.get("usage")
    found = usage.get(name) if isinstance(usage, dict) else None
    return found if type(found) is int and 0 <= found < _MOST_TOKENS else 0
