"""Routing of the OpenAI Agents SDK: inside `route_to_policy()` every model of a run answers with the policy.

An agent names its model or holds one. Its handoffs and agents-as-tools have their own models, and guardrails and tools
may start runs with their own configuration. All of them look their model up with one function of the runner,
`get_model`, so this module replaces that function. The SDK's tracing is switched off in the same way.
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
"""Modules of the SDK that look models up; each has imported `get_model` under its own name, and both are replaced."""

_installing = threading.Lock()
_installed = False


class _NotTriedTwice:
    """Base of models whose failed calls are never retried, whatever an agent's settings say."""

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice:  # noqa: ARG002  # the SDK's
        return ModelRetryAdvice(suggested=False, replay_safety="unsafe", reason="every call of a policy counts")


class PolicyChatModel(_NotTriedTwice, OpenAIChatCompletionsModel):
    """Model of the Agents SDK that asks the policy by chat completions."""


class PolicyResponsesModel(_NotTriedTwice, OpenAIResponsesModel):
    """Model of the Agents SDK that asks the policy by the Responses API."""


def install() -> None:
    """Replace the runner's look-up of models, and switch tracing off inside episodes; a second call does nothing.

    Raises `PluginError` if this version of the SDK looks its models up elsewhere.
    """
    global _installed  # noqa: PLW0603  # once per process, as what it changes
    with _installing:
        if _installed:
            return
        # All checks come first: a change that is half done would be worse than none.
        for module in _ASKING:
            if not hasattr(module, "get_model"):
                raise PluginError(
                    f"agentrl-openai {version('agentrl-openai')} cannot redirect agents of openai-agents "
                    f"{version('openai-agents')}, which has no {module.__name__}.get_model; fix: install a version of "
                    "openai-agents that this package supports, or a newer agentrl-openai"
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
    """Return whether the SDK would call a model by chat completions, rather than by the Responses API."""
    if isinstance(wanted, OpenAIChatCompletionsModel):
        return True
    if isinstance(wanted, OpenAIResponsesModel):
        return False
    return not _openai_shared.get_use_responses_by_default()


def _silence(name: str) -> None:
    """Disable the traces or spans that a method of the trace provider creates inside an episode.

    They would send the policy's prompts and replies to OpenAI or another processor.
    """
    original = getattr(DefaultTraceProvider, name)

    @functools.wraps(original)
    def create(self: DefaultTraceProvider, *args: Any, **kwargs: Any) -> Any:
        if clients().current() is not None:
            kwargs["disabled"] = True
        return original(self, *args, **kwargs)

    setattr(DefaultTraceProvider, name, create)
