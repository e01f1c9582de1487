"""Sends the calls of OpenHands' LLMs to the episode that is on.

An agent's LLM was built with the agent, long before any episode, and agents may have others: of a condenser, of
agents that they delegate to. So the redirection sits in the class of all LLMs, and acts only inside
`route_to_policy()`. A worker process has one episode at a time, and OpenHands steps on threads of its own, so that
the episode is the process's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from openhands.sdk import LLM
from pydantic import SecretStr

ENTRANCES = ("completion", "acompletion", "responses", "aresponses")
"""The methods of `LLM` by which every reply comes."""

_episode: Mapping[str, Any] | None = None
"""What an LLM must have in place of its own to reach the episode's policy."""


@contextmanager
def route_to_policy(base_url: str, api_key: str) -> Iterator[None]:
    """Let every LLM of OpenHands answer with the policy. `RuntimeError` where another episode is on."""
    global _episode  # noqa: PLW0603  # one process, one episode: see above
    if _episode is not None:
        raise RuntimeError("OpenHands' agents need a process per episode: set rollout.agent.mode to subproc")
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
        # whatever comes back (a reply, a coroutine) is handed on as it is
        return original(self if _episode is None else _in_place_of(self, _episode), *args, **kwargs)

    answer.agentrl_openhands = True  # type: ignore[attr-defined]  # so that none is redirected twice
    return answer


def _in_place_of(llm: LLM, episode: Mapping[str, Any]) -> LLM:
    """Return an LLM that asks the policy what `llm` would be asked; its costs and tokens count as `llm`'s."""
    name = llm.model.rpartition("/")[2]
    return llm.model_copy(update={**episode, "model": f"openai/{name}"})
