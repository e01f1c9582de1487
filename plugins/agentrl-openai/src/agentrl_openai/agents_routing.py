"""Lets the models of the OpenAI Agents SDK answer with the policy, inside `route_to_policy()` alone.

An agent names its model or holds one, its handoffs and its agents-as-tools have their own, and guardrails and
tools may start runs with a configuration of their own. All of them get their model from one function of the
runner, so the redirection sits there.
"""

from __future__ import annotations

import functools
import threading
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from agents.models import _openai_shared
from agents.models.default_models import get_default_model
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.models.openai_responses import OpenAIResponsesModel
from agents.retry import ModelRetryAdvice
from agents.run_internal import agent_runner_helpers, run_loop
from agents.tracing.provider import DefaultTraceProvider

from agentrl_core.errors import PluginError
from agentrl_openai.routing import clients

if TYPE_CHECKING:
    from agents import Agent, Model, RunConfig
    from agents.retry import ModelRetryAdviceRequest

_ASKING = (run_loop, agent_runner_helpers)
"""The SDK's modules that look a model up, by their own name `get_model`."""

_installing = threading.Lock()
_installed = False


class _NotTriedTwice:
    """A model whose failed calls are final, whatever retries an agent's settings ask for."""

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice:  # noqa: ARG002  # the SDK's
        return ModelRetryAdvice(suggested=False, replay_safety="unsafe", reason="every call of a policy counts")


class PolicyChatModel(_NotTriedTwice, OpenAIChatCompletionsModel):
    """The policy by chat completions."""


class PolicyResponsesModel(_NotTriedTwice, OpenAIResponsesModel):
    """The policy by the Responses API."""


def install() -> None:
    """Redirect the runner's look-up of models, and its tracing, once.

    `PluginError` if this version of the SDK looks its models up elsewhere.
    """
    global _installed  # noqa: PLW0603  # once per process, as what it changes
    with _installing:
        if _installed:
            return
        for module in _ASKING:
            if not hasattr(module, "get_model"):
                raise PluginError(
                    f"agentrl-openai {version('agentrl-openai')} cannot redirect agents of openai-agents "
                    f"{version('openai-agents')}, which has no {module.__name__}.get_model; install versions that fit"
                )
        for module in _ASKING:
            _redirect_models(module)
        for name in ("create_trace", "create_span"):
            _silence(name)
        _installed = True


def _redirect_models(module: Any) -> None:
    original = module.get_model

    @functools.wraps(original)
    def get_model(agent: Agent[Any], run_config: RunConfig) -> Model:
        client = clients().current()
        if client is None:
            found: Model = original(agent, run_config)
            return found
        wanted = agent.model if run_config.model is None else run_config.model
        name = getattr(wanted, "model", None) or (wanted if isinstance(wanted, str) else get_default_model())
        if _speaks_chat(wanted):
            return PolicyChatModel(model=name, openai_client=client)
        return PolicyResponsesModel(model=name, openai_client=client)

    module.get_model = get_model


def _speaks_chat(wanted: str | Model | None) -> bool:
    """Whether a model would be called by chat completions: as the agent's own, or by the SDK's default."""
    if isinstance(wanted, OpenAIChatCompletionsModel):
        return True
    if isinstance(wanted, OpenAIResponsesModel):
        return False
    return not _openai_shared.get_use_responses_by_default()


def _silence(name: str) -> None:
    """Trace nothing of an episode: what a policy in training says is nobody else's business."""
    original = getattr(DefaultTraceProvider, name)

    @functools.wraps(original)
    def create(self: DefaultTraceProvider, *args: Any, **kwargs: Any) -> Any:
        if clients().current() is not None:
            kwargs["disabled"] = True
        return original(self, *args, **kwargs)

    setattr(DefaultTraceProvider, name, create)
