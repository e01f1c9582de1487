"""Sends the calls of CAMEL's model backends to the episode that is on.

An agent's backend was built with the agent, long before any episode. So the redirection sits in the base class of
all backends, and acts only inside `route_to_policy()`: also for agents that a tool or a society makes. A worker
process has one episode at a time, and CAMEL steps on threads of its own, so that the episode is the process's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from camel.models import OpenAICompatibleModel
from camel.models.base_model import BaseModelBackend
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI

ENTRANCES = ("run", "arun")
"""The methods of `BaseModelBackend` by which every reply comes."""

_episode: Episode | None = None


class Episode:
    """Answers in the place of any backend, with the policy of one session."""

    def __init__(self, base_url: str, api_key: str) -> None:
        own: dict[str, Any] = {"base_url": f"{base_url}/v1", "api_key": api_key, "max_retries": 0, "timeout": None}
        # no proxy leads to the gateway
        self.client = OpenAI(**own, http_client=DefaultHttpxClient(trust_env=False, timeout=None))
        self.async_client = AsyncOpenAI(**own, http_client=DefaultAsyncHttpxClient(trust_env=False, timeout=None))

    def in_place_of(self, backend: BaseModelBackend) -> OpenAICompatibleModel:
        """Return a backend that asks the policy what `backend` would be asked."""
        policy = OpenAICompatibleModel(
            backend.model_type,
            model_config_dict=_in_openais_words(backend.model_config_dict),
            api_key=self.client.api_key,
            url=str(self.client.base_url),
            token_counter=backend._token_counter,  # noqa: SLF001  # the property would build one
            client=self.client,
            async_client=self.async_client,
            max_retries=0,
        )
        policy._extract_thinking_from_response = backend._extract_thinking_from_response  # noqa: SLF001  # no setter
        return policy


@asynccontextmanager
async def route_to_policy(base_url: str, api_key: str) -> AsyncIterator[None]:
    """Let every backend of CAMEL answer with the policy. `RuntimeError` where another episode is on."""
    global _episode  # noqa: PLW0603  # one process, one episode: see above
    if _episode is not None:
        raise RuntimeError("CAMEL's agents need a process per episode: set rollout.agent.mode to subproc")
    _install()
    _episode = episode = Episode(base_url, api_key)
    try:
        yield
    finally:
        _episode = None
        episode.client.close()
        await episode.async_client.close()


def _install() -> None:
    for name in ENTRANCES:
        method = getattr(BaseModelBackend, name)
        if not hasattr(method, "agentrl_camel"):
            setattr(BaseModelBackend, name, _redirect(method))


def _redirect(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def answer(self: BaseModelBackend, *args: Any, **kwargs: Any) -> Any:
        # whatever comes back (a reply, a coroutine, a stream) is handed on as it is
        return original(self if _episode is None else _episode.in_place_of(self), *args, **kwargs)

    answer.agentrl_camel = True  # type: ignore[attr-defined]  # so that none is redirected twice
    return answer


def _in_openais_words(config: dict[str, Any]) -> dict[str, Any]:
    """Return a backend's settings as OpenAI's client takes them: what only another provider knows is the body's."""
    known = {name: value for name, value in config.items() if name in _parameters()}
    others = {name: value for name, value in config.items() if name not in known and value is not None}
    if "stop_sequences" in others:
        known["stop"] = others.pop("stop_sequences")
    return {**known, "extra_body": {**(known.get("extra_body") or {}), **others}} if others else known


@functools.cache
def _parameters() -> frozenset[str]:
    from openai.resources.chat.completions import Completions

    return frozenset(inspect.signature(Completions.create).parameters)
