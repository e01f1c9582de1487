"""Matrix client for chat completions in OpenAI's SDK, async and sync."""

from __future__ import annotations

import asyncio
import json

import httpx2
from openai import AsyncOpenAI, OpenAI

from .base import ADD_SCHEMA, SYSTEM, Client, Conversation, Shown, run_tool, until_text

TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": ADD_SCHEMA}}]


def shown(completion, pieces=1) -> Shown:
    (choice,) = completion.choices
    calls = choice.message.tool_calls or ()
    return Shown(
        text=choice.message.content or "",
        calls=tuple((call.function.name, json.loads(call.function.arguments), call.id) for call in calls),
        finish=choice.finish_reason,
        usage=(completion.usage.prompt_tokens, completion.usage.completion_tokens),
        id=completion.id,
        pieces=pieces,
    )


class _Chat(Conversation):
    def __init__(self, door):
        self.messages = [{"role": "system", "content": SYSTEM}]
        self.options = {"model": "default", **({"tools": TOOLS} if door.tools else {})}

    async def say(self, text, *, stream=False):
        self.messages.append({"role": "user", "content": text})
        return await until_text(self._stream if stream else self._ask, self._answer)

    def _answer(self, reply):
        for name, arguments, call_id in reply.calls:
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": run_tool(name, arguments)})

    def _keep(self, completion, pieces=1):
        self.messages.append(completion.choices[0].message.to_dict())
        return shown(completion, pieces)

    @property
    def _request(self):
        return {**self.options, "messages": self.messages}

    @property
    def _streamed(self):
        return {**self._request, "stream_options": {"include_usage": True}}


class _Awaited(_Chat):
    def __init__(self, door):
        super().__init__(door)
        self.client = AsyncOpenAI(
            base_url=door.base_url, api_key=door.api_key, http_client=door.http_client, max_retries=door.retries
        )

    async def _ask(self):
        return self._keep(await self.client.chat.completions.create(**self._request))

    async def _stream(self):
        pieces = 0
        async with self.client.chat.completions.stream(**self._streamed) as stream:
            async for event in stream:
                pieces += event.type == "content.delta"
            return self._keep(await stream.get_final_completion(), pieces)

    async def leave(self, text):
        messages = [*self.messages, {"role": "user", "content": text}]
        stream = await self.client.chat.completions.create(**{**self._request, "messages": messages}, stream=True)
        async with stream:
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    return


class _Blocking(_Chat):
    def __init__(self, door):
        super().__init__(door)
        self.http_client = httpx2.Client(timeout=60)
        self.client = OpenAI(
            base_url=door.base_url, api_key=door.api_key, http_client=self.http_client, max_retries=door.retries
        )

    async def _ask(self):
        return self._keep(await asyncio.to_thread(self.client.chat.completions.create, **self._request))

    async def _stream(self):
        def run():
            with self.client.chat.completions.stream(**self._streamed) as stream:
                pieces = sum(event.type == "content.delta" for event in stream)
                return stream.get_final_completion(), pieces

        return self._keep(*await asyncio.to_thread(run))

    async def leave(self, text):
        def run():
            messages = [*self.messages, {"role": "user", "content": text}]
            with self.client.chat.completions.create(**{**self._request, "messages": messages}, stream=True) as stream:
                next(chunk for chunk in stream if chunk.choices[0].delta.content)

        await asyncio.to_thread(run)


class OpenAIChat(Client):
    """The async client."""

    name = "openai chat"

    def talk(self, door):
        return _Awaited(door)


class OpenAIChatSync(Client):
    """The blocking client."""

    name = "openai chat (sync)"
    is_sync = True

    def talk(self, door):
        return _Blocking(door)
