"""Routing of Pydantic AI models: inside `route_to_policy()` their calls go to the session of the current episode.

An agent's model is bound when the agent is built, many records share the one object, and a tool may run other agents
with their own models. So this module replaces methods of all subclasses of `Model`, through which all calls go. Outside
of `route_to_policy()` the replaced methods do the same as before.
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
"""Replaced methods of `Model`: those that agent runs, wrapper models and `pydantic_ai.direct` call."""

_SUPPRESSED = "suppress_instrumentation"
"""OpenTelemetry's context key that switches instrumentations off, including Logfire's."""


@attrs.define
class _Route:
    """An episode with the stand-ins for the models that it has used."""

    episode: WorkflowContext
    loop: asyncio.AbstractEventLoop
    policies: dict[int, tuple[Model[Any], PolicyModel]] = attrs.field(factory=dict)
    """Stand-ins by the id of the replaced model. The model is kept here too, so that its id is not used again."""

    def policy(self, model: Model[Any]) -> PolicyModel:
        """Return the stand-in for `model`."""
        if id(model) not in self.policies:
            self.policies[id(model)] = (model, PolicyModel(model, episode=self.episode, loop=self.loop))
        return self.policies[id(model)][1]


_route: ContextVar[_Route | None] = ContextVar("agentrl_pydantic_ai_route", default=None)
_installing = threading.Lock()
_redirected: WeakSet[type[Model[Any]]] = WeakSet()


@contextmanager
def route_to_policy() -> Iterator[None]:
    """Make every model that is used in this context answer with the current episode's policy.

    OpenTelemetry's and Logfire's tracing is off meanwhile, so that the policy's prompts and replies are not sent to a
    third party. Raises `LookupError` outside an episode.
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
    """Replace the methods of `ENTRANCES` in all existing model classes.

    Classes that were seen before are skipped. Raises `PluginError` if this version of Pydantic AI lacks one of the
    methods.
    """
    with _installing:
        root: Any = Model
        if missing := [name for name in ENTRANCES if name not in vars(root)]:
            raise PluginError(
                f"agentrl-pydantic-ai {version('agentrl-pydantic-ai')} cannot redirect models of pydantic-ai "
                f"{version('pydantic-ai-slim')}, which has no Model.{missing[0]}; fix: install a version of "
                "pydantic-ai that this package supports, or a newer agentrl-pydantic-ai"
            )
        # The list grows while it is iterated, until it holds all subclasses.
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
        # Not a coroutine function: the result, a coroutine or a context manager is returned as it is.
        # A stand-in is a model too, and its own calls must not be redirected again.
        route = _route.get()
        if route is None or isinstance(self, PolicyModel):
            return original(self, *args, **kwargs)
        return getattr(route.policy(self), name)(*args, **kwargs)

    return answer


def _untraced() -> telemetry.Context:
    """Return a context that switches instrumentations off, and in which parent-based samplers record no spans."""
    unsampled = trace.SpanContext(trace_id=1, span_id=1, is_remote=False, trace_flags=trace.TraceFlags.get_default())
    context = trace.set_span_in_context(trace.NonRecordingSpan(unsampled))
    return telemetry.set_value(_SUPPRESSED, True, context)
