"""Matrix client for the Responses API in OpenAI's SDK, with whole inputs and with `previous_response_id`."""

from __future__ import annotations

import json

from openai import AsyncOpenAI

from .base import ADD_SCHEMA, SYSTEM, Client, Conversation, Shown, run_tool, until_text

TOOLS = [{"type": "function", "name": "add", "description": "Adds.", "parameters": ADD_SCHEMA, "strict": False}]


def shown(response, pieces=1) -> Shown:
    calls = [item for item in response.output if item.type == "function_call"]
    return Shown(
        text=response.output_text,
        calls=tuple((call.name, json.loads(call.arguments), call.call_id) for call in calls),
        finish=response.status,
        usage=(response.usage.input_tokens, response.usage.output_tokens),
        id=response.id,
        pieces=pieces,
    )


class _Responses(Conversation):
    def __init__(self, door, *, chained):
        self.client = AsyncOpenAI(
            base_url=door.base_url, api_key=door.api_key, http_client=door.http_client, max_retries=door.retries
        )
        self.options = {"model": "default", "instructions": SYSTEM, **({"tools": TOOLS} if door.tools else {})}
        self.chained, self.previous = chained, None
        self.input = []

    async def say(self, text, *, stream=False):
        self.input.append({"role": "user", "content": text})
        return await until_text(self._stream if stream else self._ask, self._answer)

    def _answer(self, reply):
        for name, arguments, call_id in reply.calls:
            output = {"type": "function_call_output", "call_id": call_id, "output": run_tool(name, arguments)}
            self.input.append(output)

    def _request(self, *more):
        previous = {"previous_response_id": self.previous} if self.previous else {}
        return {**self.options, **previous, "input": [*self.input, *more]}

    def _keep(self, response, pieces=1):
        if self.chained:
            self.previous, self.input = response.id, []
        else:
            self.input += [item.to_dict() for item in response.output]
        return shown(response, pieces)

    async def _ask(self):
        return self._keep(await self.client.responses.create(**self._request()))

    async def _stream(self):
        pieces = 0
        async with self.client.responses.stream(**self._request()) as stream:
            async for event in stream:
                pieces += event.type == "response.output_text.delta"
            return self._keep(await stream.get_final_response(), pieces)

    async def leave(self, text):
        request = self._request({"role": "user", "content": text})
        async with await self.client.responses.create(**request, stream=True) as stream:
            async for event in stream:
                if event.type == "response.output_text.delta":
                    return


class OpenAIResponses(Client):
    """All items in every request."""

    name = "openai responses"
    finish = ("completed", "completed")
    chained = False

    def talk(self, door):
        return _Responses(door, chained=self.chained)


class OpenAIResponsesChained(OpenAIResponses):
    """Only the new items in every request."""

    name = "openai responses (previous_response_id)"
    chained = True
