"""Sends the LLM calls of Pydantic AI models to the episode in whose context they are made.

An agent's model is bound when the agent is built, many records share the one object, and a tool may run further
agents with models of their own. So the redirection sits in the methods of `Model`, where every call passes, and acts
only inside `route_to_policy()`: outside of it every model behaves as ever.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import attrs
from opentelemetry import context as telemetry
from opentelemetry import trace
from pydantic_ai.models import Model

from agentrl_core import workflow_context
from agentrl_core.errors import PluginError
from agentrl_pydantic_ai.policy import PolicyModel

if TYPE_CHECKING:
    from agentrl_core.api.context import WorkflowContext

ENTRANCES = ("request", "request_stream", "count_tokens", "prepare_messages", "prepare_request", "compact_messages")
"""The methods by which an agent run, a wrapper model or `pydantic_ai.direct` use a model."""

_SUPPRESSED = "suppress_instrumentation"
"""OpenTelemetry's own key by which instrumentations, Logfire's among them, are told to be silent."""


@attrs.define
class _Route:
    """One episode, and the policy in the place of each model that it has used."""

    episode: WorkflowContext
    loop: asyncio.AbstractEventLoop
    policies: dict[int, tuple[Model[Any], PolicyModel]] = attrs.field(factory=dict)
    """By the replaced model's identity, which it keeps as long as it is in here."""

    def policy(self, model: Model[Any]) -> PolicyModel:
        """Return what answers in the place of `model`."""
        if id(model) not in self.policies:
            self.policies[id(model)] = (model, PolicyModel(model, episode=self.episode, loop=self.loop))
        return self.policies[id(model)][1]


_route: ContextVar[_Route | None] = ContextVar("agentrl_pydantic_ai_route", default=None)
_installing = threading.Lock()
_redirected: WeakSet[type[Model[Any]]] = WeakSet()


@contextmanager
def route_to_policy() -> Iterator[None]:
    """Let every model used in this context answer with the current episode's policy.

    OpenTelemetry's and Logfire's tracing is off meanwhile: what a policy in training says is nobody else's
    business. Raises `LookupError` outside an episode.
    """
    install()
    routed = _route.set(_Route(workflow_context.get(), asyncio.get_running_loop()))
    quiet = telemetry.attach(_untraced())
    try:
        yield
    finally:
        telemetry.detach(quiet)
        _route.reset(routed)


def install() -> None:
    """Redirect the entrances of every model class that there is.

    Does nothing to classes already seen. `PluginError` if this version of Pydantic AI has other entrances.
    """
    with _installing:
        root: Any = Model
        if missing := [name for name in ENTRANCES if name not in vars(root)]:
            raise PluginError(
                f"agentrl-pydantic-ai {version('agentrl-pydantic-ai')} cannot redirect models of pydantic-ai "
                f"{version('pydantic-ai-slim')}, which has no Model.{missing[0]}; install versions that fit"
            )
        classes: list[Any] = [root]
        for model_class in classes:
            classes.extend(model_class.__subclasses__())
            if model_class not in _redirected:
                _redirected.add(model_class)
                for name in ENTRANCES:
                    if name in vars(model_class):
                        setattr(model_class, name, _redirect(name, vars(model_class)[name]))


def _redirect(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def answer(self: Model[Any], *args: Any, **kwargs: Any) -> Any:
        # whatever comes back (a result, a coroutine, a context manager) is handed on as it is
        route = _route.get()
        if route is None or isinstance(self, PolicyModel):
            return original(self, *args, **kwargs)
        return getattr(route.policy(self), name)(*args, **kwargs)

    return answer


def _untraced() -> telemetry.Context:
    """A context whose spans no sampler that minds its parent records, and that instrumentations leave alone."""
    unsampled = trace.SpanContext(trace_id=1, span_id=1, is_remote=False, trace_flags=trace.TraceFlags.get_default())
    context = trace.set_span_in_context(trace.NonRecordingSpan(unsampled))
    return telemetry.set_value(_SUPPRESSED, True, context)
