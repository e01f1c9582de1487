"""Routing of OpenHands' LLMs: inside `route_to_policy()` their calls go to the session of the episode.

An agent's LLM is built with the agent, before any episode, and there may be more: of a condenser, or of agents that it
delegates to. So this module replaces methods of the class `LLM`. The episode is a global variable, not a context
variable: OpenHands runs steps on its own threads, and a worker process has only one episode at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from openhands.sdk import LLM
from pydantic import SecretStr

ENTRANCES = ("completion", "acompletion", "responses", "aresponses")
"""Replaced methods of `LLM`, through which all calls go."""

_episode: Mapping[str, Any] | None = None
"""Fields of a copied LLM with which it reaches the policy of the running episode; None outside an episode."""


@contextmanager
def route_to_policy(base_url: str, api_key: str) -> Iterator[None]:
    """Make all OpenHands LLMs of this process answer with the policy.

    Raises `RuntimeError` if another episode is running in this process.
    """
    global _episode  # noqa: PLW0603  # one process, one episode: see above
    if _episode is not None:
        raise RuntimeError("OpenHands agents need a process for each episode; fix: set rollout.agent.mode to subproc")
    _install()
    _episode = {
        "base_url": f"{base_url}/v1",
        "api_key": SecretStr(api_key),
        "auth_type": "api_key",
        "num_retries": 0,
        "fallback_strategy": None,
        "timeout": None,
    }
    try:
        yield
    finally:
        _episode = None


def _install() -> None:
    for name in ENTRANCES:
        method = getattr(LLM, name)
        if not hasattr(method, "agentrl_openhands"):
            setattr(LLM, name, _redirect(method))


def _redirect(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def answer(self: LLM, *args: Any, **kwargs: Any) -> Any:
        # Not a coroutine function: the result, a reply or a coroutine, is returned as it is.
        return original(self if _episode is None else _in_place_of(self, _episode), *args, **kwargs)

    answer.agentrl_openhands = True  # type: ignore[attr-defined]  # so that none is redirected twice
    return answer


def _in_place_of(llm: LLM, episode: Mapping[str, Any]) -> LLM:
    """Return a stand-in for `llm` that makes the same request to the policy; `llm` counts its tokens and costs."""
    # litellm reads the part before the slash as the provider.
    name = llm.model.rpartition("/")[2]
    return llm.model_copy(update={**episode, "model": f"openai/{name}"})
