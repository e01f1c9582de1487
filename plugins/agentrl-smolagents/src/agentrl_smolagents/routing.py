"""Sends the LLM calls of smolagents' models to the episode in whose context they are made.

A model is bound when its agent is built, and may be shared by many records and by the agents that this one manages.
So the redirection sits in the methods of `Model`, where every call passes, and acts only inside `route_to_policy()`:
outside of it every model behaves as ever.
"""

from __future__ import annotations

import contextvars
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import attrs
import httpx2
from smolagents import MultiStepAgent, local_python_executor
from smolagents.models import Model

from agentrl_core import workflow_context
from agentrl_core.api.http import ssl_context
from agentrl_core.errors import PluginError
from agentrl_smolagents.policy import PolicyModel

if TYPE_CHECKING:
    from agentrl_core.api.context import WorkflowContext

ENTRANCES = ("generate", "generate_stream")
"""The methods by which agents use a model; `Model.__call__` goes through the first."""

_SUPPRESSED = "suppress_instrumentation"
"""OpenTelemetry's own key by which instrumentations, OpenInference's among them, are told to be silent."""


@attrs.define(eq=False)
class Route:
    """One episode, and the policy in the place of each model that it has used."""

    episode: WorkflowContext
    http_client: httpx2.Client
    failure: Exception | None = None
    """What the last call to the policy raised; None where it was answered."""
    _policies: dict[int, tuple[Model, PolicyModel]] = attrs.field(factory=dict)
    """By the replaced model's identity, which it keeps as long as it is in here."""
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def policy(self, model: Model) -> PolicyModel:
        """Return what answers in the place of `model`."""
        with self._lock:
            if id(model) not in self._policies:
                policy = PolicyModel(model, episode=self.episode, http_client=self.http_client, note=self._note)
                self._policies[id(model)] = (model, policy)
            return self._policies[id(model)][1]

    def _note(self, failure: Exception | None) -> None:
        self.failure = failure


_route: contextvars.ContextVar[Route | None] = contextvars.ContextVar("agentrl_smolagents_route", default=None)
_lock = threading.Lock()
_redirected: WeakSet[type] = WeakSet()
_running: dict[int, Route] = {}
"""Which episode runs an agent at present, by the agent's identity."""


@contextmanager
def route_to_policy() -> Iterator[Route]:
    """Let every model used in this context answer with the current episode's policy.

    Calls go by a socket, as smolagents' models block. OpenTelemetry's instrumentations are told to be silent
    meanwhile: what a policy in training says is nobody else's business. Raises `LookupError` outside an episode.
    """
    install()
    episode = workflow_context.get()
    # no proxy leads to this machine
    with httpx2.Client(verify=ssl_context(), trust_env=False, timeout=episode.http_client.timeout) as client:
        route = Route(episode, client)
        token = _route.set(route)
        try:
            with _untraced():
                yield route
        finally:
            _route.reset(token)


def install() -> None:
    """Redirect the entrances of every model class that there is, and let the episode follow code into its thread.

    Does nothing to classes already seen. `PluginError` if this version of smolagents has other entrances.
    """
    with _lock:
        if not hasattr(Model, "generate") or not hasattr(local_python_executor, "ThreadPoolExecutor"):
            raise PluginError(
                f"agentrl-smolagents {version('agentrl-smolagents')} cannot redirect models of smolagents "
                f"{version('smolagents')}, whose Model.generate or local_python_executor.ThreadPoolExecutor is gone; "
                "install versions that fit"
            )
        local_python_executor.ThreadPoolExecutor = _ContextExecutor
        _patch_tree(Model, ENTRANCES, _redirect)
        _patch_tree(MultiStepAgent, ("run",), _refuse_sharing)


def _patch_tree(root: type, names: tuple[str, ...], patch: Callable[[str, Callable[..., Any]], Any]) -> None:
    classes = [root]
    for one in classes:
        classes.extend(one.__subclasses__())
        if one not in _redirected:
            _redirected.add(one)
            for name in names:
                if name in vars(one):
                    setattr(one, name, patch(name, vars(one)[name]))


def _redirect(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def answer(self: Model, *args: Any, **kwargs: Any) -> Any:
        # whatever comes back (a message, a generator) is handed on as it is
        route = _route.get()
        if route is None or isinstance(self, PolicyModel):
            return original(self, *args, **kwargs)
        return getattr(route.policy(self), name)(*args, **kwargs)

    return answer


def _refuse_sharing(_name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse an agent that two records run at once, a tool's for one: they would write into one memory."""

    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        route = _route.get()
        if route is None:
            return original(self, *args, **kwargs)
        with _lock:
            outer = _running.get(id(self))
            if outer not in (None, route):
                raise RuntimeError(
                    f"the {type(self).__name__} '{self.name or 'without a name'}' is run by two records at once, which "
                    "would mix their memories: hand it to the main agent as one of its `managed_agents`, or name in "
                    "`workflow` a function that builds it with the rest"
                )
            _running[id(self)] = route
        try:
            return original(self, *args, **kwargs)
        finally:
            if outer is None:
                with _lock:
                    del _running[id(self)]

    return run


class _ContextExecutor(ThreadPoolExecutor):
    """Runs what it is given in the context of who gave it: a CodeAgent's code has a thread of its own."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(contextvars.copy_context().run, fn, *args, **kwargs)


@contextmanager
def _untraced() -> Iterator[None]:
    """Tell instrumentations to be silent, and have no span recorded, where OpenTelemetry is loaded."""
    if "opentelemetry" not in sys.modules:
        yield
        return
    from opentelemetry import context as telemetry
    from opentelemetry import trace

    unsampled = trace.SpanContext(trace_id=1, span_id=1, is_remote=False, trace_flags=trace.TraceFlags.get_default())
    context = trace.set_span_in_context(trace.NonRecordingSpan(unsampled))
    token = telemetry.attach(telemetry.set_value(_SUPPRESSED, True, context))
    try:
        yield
    finally:
        telemetry.detach(token)
