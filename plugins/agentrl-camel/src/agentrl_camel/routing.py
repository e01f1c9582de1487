"""Routing of CAMEL's model backends: inside `route_to_policy()` their calls go to the session of the episode.

An agent's backend is built with the agent, before any episode. So this module replaces methods of the base class of all
backends, which also covers agents that a tool or a society creates. The episode is a global variable, not a context
variable: CAMEL runs steps on its own threads, and a worker process has only one episode at a time.
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
"""Replaced methods of `BaseModelBackend`, through which all calls go."""

_episode: Episode | None = None


class Episode:
    """Clients for the session of one episode, and stand-ins for backends that use them."""

    def __init__(self, base_url: str, api_key: str) -> None:
        own: dict[str, Any] = {"base_url": f"{base_url}/v1", "api_key": api_key, "max_retries": 0, "timeout": None}
        # `trust_env=False`: a proxy of the environment could not reach the gateway.
        self.client = OpenAI(**own, http_client=DefaultHttpxClient(trust_env=False, timeout=None))
        self.async_client = AsyncOpenAI(**own, http_client=DefaultAsyncHttpxClient(trust_env=False, timeout=None))

    def in_place_of(self, backend: BaseModelBackend) -> OpenAICompatibleModel:
        """Return a stand-in for `backend` that makes the same request to the policy."""
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
    """Make all CAMEL backends of this process answer with the policy.

    Raises `RuntimeError` if another episode is running in this process.
    """
    global _episode  # noqa: PLW0603  # one process, one episode: see above
    if _episode is not None:
        raise RuntimeError("CAMEL agents need a process for each episode; fix: set rollout.agent.mode to subproc")
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
        # Not a coroutine function: the result, a reply, a coroutine or a stream, is returned as it is.
        return original(self if _episode is None else _episode.in_place_of(self), *args, **kwargs)

    answer.agentrl_camel = True  # type: ignore[attr-defined]  # so that none is redirected twice
    return answer


def _in_openais_words(config: dict[str, Any]) -> dict[str, Any]:
    """Return a backend's settings as arguments of OpenAI's client; settings that it does not have go into the body."""
    known = {name: value for name, value in config.items() if name in _parameters()}
    others = {name: value for name, value in config.items() if name not in known and value is not None}
    if "stop_sequences" in others:
        known["stop"] = others.pop("stop_sequences")
    return {**known, "extra_body": {**(known.get("extra_body") or {}), **others}} if others else known


@functools.cache
def _parameters() -> frozenset[str]:
    from openai.resources.chat.completions import Completions

    return frozenset(inspect.signature(Completions.create).parameters)
