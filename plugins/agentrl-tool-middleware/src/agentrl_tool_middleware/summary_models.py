"""Models that the browse agent asks, in order: retries of one model, then the next one."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import attrs

from agentrl_core import workflow_context
from agentrl_core.api.completions import ask
from agentrl_core.api.extract import without_thoughts
from agentrl_core.api.http import (
    RETRYABLE_STATUSES,
    Backoff,
    ExchangeError,
    RetryPolicy,
    ServerClient,
    TransientError,
    retry_after_s,
)
from agentrl_core.errors import RequestError
from agentrl_judge.breaker import Breaker
from agentrl_tool_middleware.browse_settings import Upstream

if TYPE_CHECKING:
    from agentrl_core.types import Message
    from agentrl_judge.settings import ModelSettings
    from agentrl_tool_middleware.browse_settings import BrowseSettings

logger = logging.getLogger(__name__)

Messages: TypeAlias = "Sequence[Message]"

_LARGEST_BYTES = 4 << 20
_MOST_SHOWN_CHARS = 300
_LONGEST_WAIT_S = 30.0
_BREAKER_FAILURES, _BREAKER_RESET_S = 5, 30.0
"""As of judges: after so many failures in a row a model is not asked for so many seconds."""
_OK = 200


class NoSummaryError(Exception):
    """No model gave a summary; the message names the failure of each, never a key."""


class _FailureError(Exception):
    """One call of one model failed."""


class _Model(Protocol):
    @property
    def label(self) -> str:
        """Name of the model in messages."""
        ...

    async def reply(self, messages: Messages) -> str:
        """Return the text of one reply; raises `TransientError` if a retry may help, else `_FailureError`."""
        ...


class SummaryModels:
    """Models in order of preference, with the rules by which they are asked."""

    def __init__(self, settings: BrowseSettings, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._timeout_s = settings.timeout
        self._logs = settings.enable_logging
        self._retries = RetryPolicy(
            max_retries=settings.max_retries,
            backoff=Backoff(first_s=settings.retry_delay),
            longest_wait_s=_LONGEST_WAIT_S,
            sleep=sleep,
        )
        self._models: list[tuple[_Model, Breaker]] = [
            (
                _OfUpstream(model.upstream) if isinstance(model, Upstream) else _OfServer(model, settings.timeout),
                Breaker(failures=_BREAKER_FAILURES, reset_s=_BREAKER_RESET_S, clock=time.monotonic),
            )
            for model in settings.models
        ]

    async def ask(self, messages: Messages) -> str:
        """Return the reply of the first model that gives one; raises `NoSummaryError`."""
        failures = []
        for model, breaker in self._models:
            if not breaker.admit():
                failures.append(f"{model.label}: not called after several failures in a row")
                continue
            try:
                text = await self._retries.call(lambda model=model: self._reply(model, messages))  # type: ignore[misc]
            except _FailureError as error:
                breaker.failed()
                failures.append(f"{model.label}: {error}")
                logger.warning("browse agent: %s: %s", model.label, error)
            else:
                breaker.succeeded()
                return text
            finally:
                breaker.released()
        raise NoSummaryError("; ".join(failures))

    async def _reply(self, model: _Model, messages: Messages) -> str:
        began = time.monotonic()
        outcome = "failed"
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                text = _unfenced(without_thoughts(await model.reply(messages)))
            if not text:
                raise TransientError(_FailureError("the reply has no text"))
            outcome = f"{len(text)} characters"
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TransientError(_FailureError(f"no reply within {self._timeout_s:g} s")) from error
        else:
            return text
        finally:
            if self._logs:
                logger.info("browse agent: %s: %s in %.1f s", model.label, outcome, time.monotonic() - began)


class _OfServer:
    """A model on an OpenAI-compatible server."""

    def __init__(self, settings: ModelSettings, timeout_s: float) -> None:
        self.label = settings.label
        self._settings = settings
        self._client = ServerClient(
            settings.base_url, proxy=settings.proxy, headers=self._authorization, silence_s=timeout_s, retries=0
        )

    async def reply(self, messages: Messages) -> str:
        """Return the text of one reply."""
        settings = self._settings
        body = {"model": settings.model, "messages": list(messages), "stream": False, **settings.extra_body}
        try:
            with await self._client.request("POST", "/chat/completions", json.dumps(body).encode()) as answer:
                status, headers, data = answer.status, answer.headers, await answer.read(_LARGEST_BYTES)
        except ExchangeError as error:
            raise TransientError(_FailureError(settings.without_key(str(error)))) from error
        if status == _OK:
            return _content(data)
        said = settings.without_key(" ".join(data[:4096].decode(errors="replace").split()))[:_MOST_SHOWN_CHARS]
        failure = _FailureError(f"status {status}: {said}")
        if status in RETRYABLE_STATUSES:
            raise TransientError(failure, asked_s=retry_after_s(headers))
        raise failure

    def _authorization(self) -> Mapping[str, str]:
        try:
            key = self._settings.read_key()
        except ValueError as error:
            raise _FailureError(str(error)) from None
        return {"Authorization": f"Bearer {key}"} if key else {}


@attrs.frozen
class _OfUpstream:
    """A model of the run's `gateway.upstreams`, asked within the episode."""

    name: str

    @property
    def label(self) -> str:
        return f"upstream {self.name}"

    async def reply(self, messages: Messages) -> str:
        """Return the text of one reply."""
        here = workflow_context.get()
        try:
            body = await ask(here.http_client, here.base_url, here.api_key, messages, {"model": self.name})
        # The gateway has repeated what may be repeated.
        except RequestError as error:
            raise _FailureError(str(error)[:_MOST_SHOWN_CHARS]) from error
        return body["choices"][0]["message"].get("content") or ""


def _content(data: bytes) -> str:
    try:
        content = json.loads(data)["choices"][0]["message"].get("content")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise TransientError(_FailureError("the reply is not a chat completion")) from error
    return content if isinstance(content, str) else ""


def _unfenced(text: str) -> str:
    """Return a reply without a code fence around all of it."""
    text = text.strip()
    for opening in ("```markdown\n", "```\n"):
        if text.startswith(opening) and text.endswith("```"):
            return text[len(opening) : -3].strip()
    return text
