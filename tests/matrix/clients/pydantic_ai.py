"""Matrix client for Pydantic AI: its agents with OpenAI's chat and Responses models and with Anthropic's model."""

from __future__ import annotations

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from .base import SYSTEM, Client, Conversation, Shown, add


def shown(response, pieces=1) -> Shown:
    return Shown(
        text=response.text or "",
        calls=tuple((call.tool_name, call.args_as_dict(), call.tool_call_id) for call in response.tool_calls),
        finish=response.finish_reason,
        usage=(response.usage.input_tokens, response.usage.output_tokens),
        id=response.provider_response_id,
        pieces=pieces,
    )


def is_text(event) -> bool:
    if isinstance(event, PartStartEvent):
        return isinstance(event.part, TextPart) and bool(event.part.content)
    return isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta)


class _Agent(Conversation):
    def __init__(self, model, door):
        self.agent = Agent(model, instructions=SYSTEM, tools=[add] if door.tools else [])
        self.history = []

    async def say(self, text, *, stream=False):
        pieces = []
        async with self.agent.iter(text, message_history=self.history) as run:
            async for node in run:
                if stream and Agent.is_model_request_node(node):
                    async with node.stream(run.ctx) as events:
                        pieces.append(sum([is_text(event) async for event in events]))
        self.history = run.result.all_messages()
        responses = [message for message in run.result.new_messages() if isinstance(message, ModelResponse)]
        return [shown(*one) for one in zip(responses, pieces or [1] * len(responses), strict=True)]

    async def leave(self, text):
        async with self.agent.run_stream(text, message_history=self.history) as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                return


class PydanticOpenAI(Client):
    """OpenAI's chat completions."""

    name = "pydantic-ai (openai chat)"
    finish = ("stop", "tool_call")
    model = OpenAIChatModel

    def talk(self, door):
        client = AsyncOpenAI(
            base_url=door.base_url, api_key=door.api_key, http_client=door.http_client, max_retries=door.retries
        )
        return _Agent(self.model("default", provider=OpenAIProvider(openai_client=client)), door)


class PydanticResponses(PydanticOpenAI):
    """OpenAI's Responses API."""

    name = "pydantic-ai (openai responses)"
    finish = ("stop", "stop")
    model = OpenAIResponsesModel


class PydanticAnthropic(Client):
    """Anthropic's Messages."""

    name = "pydantic-ai (anthropic)"
    finish = ("stop", "tool_call")

    def talk(self, door):
        client = AsyncAnthropic(
            base_url=door.base_url.removesuffix("/v1"),
            api_key=door.api_key,
            http_client=door.http_client,
            max_retries=door.retries,
        )
        return _Agent(AnthropicModel("default", provider=AnthropicProvider(anthropic_client=client)), door)
