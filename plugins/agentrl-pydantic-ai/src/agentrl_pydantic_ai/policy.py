"""Pydantic AI model that asks the policy of one episode, by the gateway's chat completions."""

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
"""Capabilities of the gateway, which do not depend on the name of the replaced model."""

_OUTPUT = (
    "default_structured_output_mode",
    "prompted_output_template",
    "native_output_requires_schema_in_instructions",
)
"""Fields kept from the replaced model's profile: they decide how the prompt asks for structured output."""

_TRANSPORT = ("max_retries", "timeout")
"""Settings of a call that are dropped: calls are not repeated, and the episode has its own time limit."""


class PolicyModel(OpenAIChatModel):
    """Stand-in for another model: makes the same request to an episode's policy.

    A refusal of the gateway is raised as Pydantic AI's own `ModelHTTPError`. No request is sent twice.
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
        """Create a stand-in for `model`, whose `http_client` (by default the episode's) belongs to the event `loop`."""
        # There is one policy and nothing to fall back to: the first model decides how the request is written.
        while isinstance(model, FallbackModel):
            model = model.models[0]
        provider = _provider(episode, http_client or episode.http_client)
        super().__init__(model.model_name, provider=provider, settings=model.settings, profile=_profile(model))
        self._replaced, self._episode, self._loop = model, episode, loop

    def prepare_request(
        self, model_settings: ModelSettings | None, model_request_parameters: ModelRequestParameters
    ) -> tuple[ModelSettings | None, ModelRequestParameters]:
        """Prepare a request as usual, then drop the settings in `_TRANSPORT`."""
        settings, parameters = super().prepare_request(model_settings, model_request_parameters)
        asked = {name: value for name, value in (settings or {}).items() if name not in _TRANSPORT}
        return cast("ModelSettings", asked), parameters

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Ask the policy for a whole reply."""
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
        """Ask the policy for a streamed reply."""
        async with (
            self._here() as policy,
            super(PolicyModel, policy).request_stream(
                messages, model_settings, model_request_parameters, run_context
            ) as stream,
        ):
            yield stream

    @asynccontextmanager
    async def _here(self) -> AsyncIterator[PolicyModel]:
        """Yield this model, or a copy of it whose HTTP client belongs to the running event loop.

        A tool that is a plain function runs on a thread. `run_sync` in it starts another event loop, on which the
        episode's client cannot be used.
        """
        if asyncio.get_running_loop() is self._loop:
            yield self
            return
        timeout = self._episode.http_client.timeout
        # `trust_env=False`: the gateway is on this machine, and a proxy of the environment could not reach it.
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
