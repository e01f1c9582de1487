"""Sends the LLM calls of LangChain chat models to the episode in whose context they are made.

An agent's model is bound when the agent is built, long before any episode, and many records share the
one object. So the redirection sits where every chat model passes, in `BaseChatModel`, and acts only inside
`route_to_policy()`: outside an episode every model behaves as ever.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel

from agentrl_langchain.policy import PolicyChatModel

_policy: ContextVar[PolicyChatModel | None] = ContextVar("agentrl_langchain_policy", default=None)
_installing = threading.Lock()
_REDIRECTED = "_agentrl_redirected"


@contextmanager
def route_to_policy() -> Iterator[None]:
    """Let every chat model called in this context answer with the current episode's policy."""
    _install()
    token = _policy.set(PolicyChatModel.of_current_episode())
    try:
        yield
    finally:
        _policy.reset(token)


def _policy_for(model: BaseChatModel) -> PolicyChatModel | None:
    """The policy that stands in for `model` here, with the settings that the agent gave it."""
    policy = _policy.get()
    if policy is None or isinstance(model, PolicyChatModel):
        return None
    return policy.with_settings_of(model)


def _install() -> None:
    """Wrap the four methods through which all chat models answer; once per process."""
    with _installing:
        if getattr(BaseChatModel, _REDIRECTED, False):
            return
        for name in ("_generate_with_cache", "_agenerate_with_cache", "stream"):
            setattr(BaseChatModel, name, _redirect(name))
        BaseChatModel.astream = _redirect_astream()  # type: ignore[method-assign]
        setattr(BaseChatModel, _REDIRECTED, True)


def _redirect(name: str) -> Callable[..., Any]:
    original = getattr(BaseChatModel, name)

    @functools.wraps(original)
    def answer(self: BaseChatModel, *args: Any, **kwargs: Any) -> Any:
        # whatever `original` returns (a result, a coroutine, an iterator) is handed on as it is
        return original(_policy_for(self) or self, *args, **kwargs)

    return answer


def _redirect_astream() -> Callable[..., AsyncIterator[Any]]:
    original = BaseChatModel.astream

    @functools.wraps(original)
    async def astream(self: BaseChatModel, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async for chunk in original(_policy_for(self) or self, *args, **kwargs):
            yield chunk

    return astream
