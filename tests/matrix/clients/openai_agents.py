"""Matrix client for OpenAI's Agents SDK: its runner with the Responses model and with the chat model."""

from __future__ import annotations

import json

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI

from .base import SYSTEM, Client, Conversation, Shown, add

CONFIG = RunConfig(tracing_disabled=True, model_settings=ModelSettings(include_usage=True))


def shown(reply, pieces=1) -> Shown:
    calls = [item for item in reply.output if item.type == "function_call"]
    messages = [item for item in reply.output if item.type == "message"]
    return Shown(
        text="".join(part.text for message in messages for part in message.content),
        calls=tuple((call.name, json.loads(call.arguments), call.call_id) for call in calls),
        usage=(reply.usage.input_tokens, reply.usage.output_tokens),
        id=None if reply.response_id == "__fake_id__" else reply.response_id,
        pieces=pieces,
    )


class _Run(Conversation):
    def __init__(self, model, door):
        self.agent = Agent(
            name="adder", instructions=SYSTEM, model=model, tools=[function_tool(add)] if door.tools else []
        )
        self.input = []

    async def say(self, text, *, stream=False):
        asked = [*self.input, {"role": "user", "content": text}]
        pieces = [1]
        if stream:
            result = Runner.run_streamed(self.agent, asked, run_config=CONFIG)
            pieces = [0]
            async for event in result.stream_events():
                if event.type == "raw_response_event":
                    pieces[-1] += event.data.type == "response.output_text.delta"
                    pieces += [0] * (event.data.type == "response.completed")
        else:
            result = await Runner.run(self.agent, asked, run_config=CONFIG)
        self.input = result.to_input_list()
        if not stream:
            pieces *= len(result.raw_responses)
        return [shown(*one) for one in zip(result.raw_responses, pieces, strict=False)]

    async def leave(self, text):
        result = Runner.run_streamed(self.agent, [*self.input, {"role": "user", "content": text}], run_config=CONFIG)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                result.cancel()


class AgentsResponses(Client):
    """Its default model."""

    name = "openai-agents (responses)"
    hides = frozenset({"finish"})
    model = OpenAIResponsesModel

    def talk(self, door):
        client = AsyncOpenAI(
            base_url=door.base_url, api_key=door.api_key, http_client=door.http_client, max_retries=door.retries
        )
        return _Run(self.model(model="default", openai_client=client), door)


class AgentsChat(AgentsResponses):
    """Its chat completions model."""

    name = "openai-agents (chat)"
    hides = frozenset({"finish", "id"})
    model = OpenAIChatCompletionsModel
