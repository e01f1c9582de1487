"""Routing of LangChain chat models: inside `route_to_policy()` their calls go to the session of the current episode.

An agent's model is bound when the agent is built, before any episode, and many records share the one object. So this
module replaces methods of `BaseChatModel`, through which all calls of all chat models go. Outside of
`route_to_policy()` the replaced methods do the same as before.
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
"""Replaced methods of `BaseChatModel`.

They stand between its public methods (`invoke`, `abatch`, `agenerate`, `astream_events`, …) and those that providers
implement; every call goes through one of them.
"""

_episode: ContextVar[WorkflowContext | None] = ContextVar("agentrl_langchain_episode", default=None)
_installing = threading.Lock()
_redirected: WeakSet[type[BaseChatModel]] = WeakSet()


@contextmanager
def route_to_policy() -> Iterator[None]:
    """Make every chat model that is called in this context answer with the current episode's policy.

    LangSmith's tracing is off meanwhile, so that the policy's prompts and replies are not sent to a third party. Raises
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
    """Replace the methods of `ENTRANCES` in all existing chat model classes, including overrides in subclasses.

    Classes that were seen before are skipped. Raises `PluginError` if this version of langchain-core lacks one of the
    methods.
    """
    with _installing:
        root: Any = BaseChatModel
        if missing := [name for name in ENTRANCES if name not in vars(root)]:
            raise PluginError(
                f"agentrl-langchain {version('agentrl-langchain')} cannot redirect chat models of langchain-core "
                f"{version('langchain-core')}, which has no BaseChatModel.{missing[0]}; fix: install a version of "
                "langchain-core that this package supports, or a newer agentrl-langchain"
            )
        # The list grows while it is iterated, until it holds all subclasses.
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
        # Not a coroutine function: the result, a coroutine or an iterator is returned as it is.
        # A stand-in is a chat model too, and its own calls must not be redirected again.
        episode = _episode.get()
        if episode is None or isinstance(self, PolicyChatModel):
            return original(self, *args, **kwargs)
        return getattr(PolicyChatModel.in_place_of(self, episode), name)(*args, **kwargs)

    return answer
