"""Routing of smolagents models: inside `route_to_policy()` their calls go to the session of the current episode.

A model is bound when its agent is built, and may be shared by many records and by managed agents. So this module
replaces methods of all subclasses of `Model`, through which all calls go. Outside of `route_to_policy()` the replaced
methods do the same as before.
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
"""Replaced methods of `Model`: those that agents call; `Model.__call__` goes through the first."""

_SUPPRESSED = "suppress_instrumentation"
"""OpenTelemetry's context key that switches instrumentations off, including OpenInference's."""


@attrs.define(eq=False)
class Route:
    """An episode with the stand-ins for the models that it has used."""

    episode: WorkflowContext
    http_client: httpx2.Client
    failure: Exception | None = None
    """Exception of the last call to the policy; None if it was answered."""
    _policies: dict[int, tuple[Model, PolicyModel]] = attrs.field(factory=dict)
    """Stand-ins by the id of the replaced model. The model is kept here too, so that its id is not used again."""
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def policy(self, model: Model) -> PolicyModel:
        """Return the stand-in for `model`."""
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
"""Episodes that run an agent at present, by the id of the agent."""


@contextmanager
def route_to_policy() -> Iterator[Route]:
    """Make every model that is used in this context answer with the current episode's policy.

    Calls use a blocking client with its own socket, because smolagents' models block. OpenTelemetry's instrumentations
    are off meanwhile, so that the policy's prompts and replies are not sent to a third party. Raises `LookupError`
    outside an episode.
    """
    install()
    episode = workflow_context.get()
    # `trust_env=False`: the gateway is on this machine, and a proxy of the environment could not reach it.
    with httpx2.Client(verify=ssl_context(), trust_env=False, timeout=episode.http_client.timeout) as client:
        route = Route(episode, client)
        token = _route.set(route)
        try:
            with _untraced():
                yield route
        finally:
            _route.reset(token)


def install() -> None:
    """Replace the methods of `ENTRANCES` in all existing model classes, and make generated code keep its context.

    Classes that were seen before are skipped. Raises `PluginError` if this version of smolagents lacks one of the
    replaced names.
    """
    with _lock:
        if not hasattr(Model, "generate") or not hasattr(local_python_executor, "ThreadPoolExecutor"):
            raise PluginError(
                f"agentrl-smolagents {version('agentrl-smolagents')} cannot redirect models of smolagents "
                f"{version('smolagents')}, whose Model.generate or local_python_executor.ThreadPoolExecutor is gone; "
                "fix: install a version of smolagents that this package supports, or a newer agentrl-smolagents"
            )
        local_python_executor.ThreadPoolExecutor = _ContextExecutor
        _patch_tree(Model, ENTRANCES, _redirect)
        _patch_tree(MultiStepAgent, ("run",), _refuse_sharing)


def _patch_tree(root: type, names: tuple[str, ...], patch: Callable[[str, Callable[..., Any]], Any]) -> None:
    # The list grows while it is iterated, until it holds all subclasses.
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
        # Not a generator function: the result, a message or a generator is returned as it is.
        # A stand-in is a model too, and its own calls must not be redirected again.
        route = _route.get()
        if route is None or isinstance(self, PolicyModel):
            return original(self, *args, **kwargs)
        return getattr(route.policy(self), name)(*args, **kwargs)

    return answer


def _refuse_sharing(_name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse to run an agent for two records at once, such as one that a tool holds: they would share its memory."""

    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        route = _route.get()
        if route is None:
            return original(self, *args, **kwargs)
        with _lock:
            outer = _running.get(id(self))
            # The same record may run an agent again while it runs, for example from one of its tools.
            if outer not in (None, route):
                raise RuntimeError(
                    f"the {type(self).__name__} '{self.name or 'without a name'}' is run by two records at once, which "
                    "would mix their memories; fix: pass it to the main agent in `managed_agents`, or name a function "
                    "in `workflow` that builds it together with the main agent"
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
    """Thread pool that runs functions in the caller's context: a CodeAgent runs generated code on another thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(contextvars.copy_context().run, fn, *args, **kwargs)


@contextmanager
def _untraced() -> Iterator[None]:
    """Switch instrumentations and the recording of spans off until the end of the block, if OpenTelemetry is loaded."""
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
