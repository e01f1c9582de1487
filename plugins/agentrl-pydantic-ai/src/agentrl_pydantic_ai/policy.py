"""The policy of one episode as a Pydantic AI model, over the gateway's chat completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import httpx2
from openai import AsyncOpenAI
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIJsonSchemaTransformer, OpenAIModelProfile
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

from agentrl_core.api.http import ssl_context

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.tools import RunContext

    from agentrl_core.api.context import WorkflowContext

_PROFILE = OpenAIModelProfile(
    context_window=None,
    json_schema_transformer=OpenAIJsonSchemaTransformer,
    openai_chat_send_back_thinking_parts="field",
    openai_chat_supports_multiple_system_messages=False,  # most chat templates take one
    openai_chat_thinking_field="reasoning_content",
    supports_json_object_output=True,
    supports_json_schema_output=True,
)
"""What the gateway takes, whatever the name of the model in whose place it answers."""

_OUTPUT = (
    "default_structured_output_mode",
    "prompted_output_template",
    "native_output_requires_schema_in_instructions",
)
"""Of the replaced model's profile, how the agent asks for structured output: part of its prompt."""

_TRANSPORT = ("max_retries", "timeout")
"""Settings of a call that are meant for a provider's server: a sample is asked for once, and the episode's own time
limit holds."""


class PolicyModel(OpenAIChatModel):
    """Answers with an episode's policy in the place of another model, asked as that one would be.

    A refusal of the gateway is raised as Pydantic AI's own `ModelHTTPError`, and no request is sent twice.
    """

    unsupported_settings = frozenset()

    def __init__(
        self,
        model: Model[Any],
        *,
        episode: WorkflowContext,
        loop: asyncio.AbstractEventLoop,
        http_client: httpx2.AsyncClient | None = None,
    ) -> None:
        """Stand in for `model`; `http_client`, else the episode's, serves `loop`."""
        while isinstance(model, FallbackModel):
            model = model.models[0]
        provider = _provider(episode, http_client or episode.http_client)
        super().__init__(model.model_name, provider=provider, settings=model.settings, profile=_profile(model))
        self._replaced, self._episode, self._loop = model, episode, loop

    def prepare_request(
        self, model_settings: ModelSettings | None, model_request_parameters: ModelRequestParameters
    ) -> tuple[ModelSettings | None, ModelRequestParameters]:
        """Leave out what is meant for a provider's server."""
        settings, parameters = super().prepare_request(model_settings, model_request_parameters)
        asked = {name: value for name, value in (settings or {}).items() if name not in _TRANSPORT}
        return cast("ModelSettings", asked), parameters

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Ask the policy."""
        async with self._here() as policy:
            return await super(PolicyModel, policy).request(messages, model_settings, model_request_parameters)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Ask the policy and hear it speak."""
        async with (
            self._here() as policy,
            super(PolicyModel, policy).request_stream(
                messages, model_settings, model_request_parameters, run_context
            ) as stream,
        ):
            yield stream

    @asynccontextmanager
    async def _here(self) -> AsyncIterator[PolicyModel]:
        """Give this model with a client of the running event loop.

        A tool that is a plain function has a thread, and `run_sync` in it an event loop, which the episode's client
        does not serve.
        """
        if asyncio.get_running_loop() is self._loop:
            yield self
            return
        timeout = self._episode.http_client.timeout
        # no proxy leads to this machine
        async with httpx2.AsyncClient(verify=ssl_context(), trust_env=False, timeout=timeout) as client:
            yield type(self)(self._replaced, episode=self._episode, loop=asyncio.get_running_loop(), http_client=client)


def _provider(episode: WorkflowContext, http_client: httpx2.AsyncClient) -> OpenAICompatibleProvider:
    client = AsyncOpenAI(
        base_url=f"{episode.base_url}/v1", api_key=episode.api_key, http_client=http_client, max_retries=0
    )
    return OpenAICompatibleProvider("agentrl", openai_client=client, profile=lambda _: _PROFILE)


def _profile(model: Model[Any]) -> OpenAIModelProfile:
    replaced: Any = model.profile
    return cast("OpenAIModelProfile", {name: replaced[name] for name in _OUTPUT if name in replaced})
