"""Sends the LLM calls of LangChain chat models to the episode in whose context they are made.

An agent's model is bound when the agent is built, long before any episode, and many records share the one
object. So the redirection sits in `BaseChatModel`, where every chat model passes, and acts only inside
`route_to_policy()`: outside of it every model behaves as ever.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from langchain_core.language_models.chat_models import BaseChatModel
from langsmith import tracing_context

from agentrl_core import workflow_context
from agentrl_core.errors import PluginError
from agentrl_langchain.policy import PolicyChatModel

if TYPE_CHECKING:
    from agentrl_core.api.context import WorkflowContext

ENTRANCES = (
    "_generate_with_cache",
    "_agenerate_with_cache",
    "stream",
    "astream",
    "_chat_model_stream_v3",
    "_achat_model_stream_v3",
)
"""The methods of `BaseChatModel` between its public ones and what providers implement: whatever is called
(`invoke`, `abatch`, `agenerate`, `astream_events`, …), the answer comes through one of these."""

_episode: ContextVar[WorkflowContext | None] = ContextVar("agentrl_langchain_episode", default=None)
_installing = threading.Lock()
_redirected: WeakSet[type[BaseChatModel]] = WeakSet()


@contextmanager
def route_to_policy() -> Iterator[None]:
    """Let every chat model called in this context answer with the current episode's policy.

    LangSmith's tracing is off meanwhile: what a policy in training says is nobody else's business. Raises
    `LookupError` outside an episode.
    """
    install()
    token = _episode.set(workflow_context.get())
    try:
        with tracing_context(enabled=False):
            yield
    finally:
        _episode.reset(token)


def install() -> None:
    """Redirect the entrances of every chat model class that there is, also those that a subclass overrides.

    Does nothing to classes already seen. `PluginError` if this version of langchain-core has other entrances.
    """
    with _installing:
        root: Any = BaseChatModel
        if missing := [name for name in ENTRANCES if name not in vars(root)]:
            raise PluginError(
                f"agentrl-langchain {version('agentrl-langchain')} cannot redirect chat models of langchain-core "
                f"{version('langchain-core')}, which has no BaseChatModel.{missing[0]}; install versions that fit"
            )
        classes: list[Any] = [root]
        for chat_model in classes:
            classes.extend(chat_model.__subclasses__())
            if chat_model not in _redirected:
                _redirected.add(chat_model)
                for name in ENTRANCES:
                    if name in vars(chat_model):
                        setattr(chat_model, name, _redirect(name, vars(chat_model)[name]))


def _redirect(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def answer(self: BaseChatModel, *args: Any, **kwargs: Any) -> Any:
        # whatever comes back (a result, a coroutine, an iterator) is handed on as it is
        episode = _episode.get()
        if episode is None or isinstance(self, PolicyChatModel):
            return original(self, *args, **kwargs)
        return getattr(PolicyChatModel.in_place_of(self, episode), name)(*args, **kwargs)

    return answer
