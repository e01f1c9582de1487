"""Matrix client for the Messages API in Anthropic's SDK."""

from __future__ import annotations

from anthropic import AsyncAnthropic

from .base import ADD_SCHEMA, SYSTEM, Client, Conversation, Shown, run_tool, until_text

TOOLS = [{"name": "add", "description": "Adds.", "input_schema": ADD_SCHEMA}]


def shown(message, pieces=1) -> Shown:
    return Shown(
        text="".join(block.text for block in message.content if block.type == "text"),
        calls=tuple((block.name, block.input, block.id) for block in message.content if block.type == "tool_use"),
        finish=message.stop_reason,
        usage=(message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0), message.usage.output_tokens),
        id=message.id,
        pieces=pieces,
    )


class _Messages(Conversation):
    def __init__(self, door):
        self.client = AsyncAnthropic(
            base_url=door.base_url.removesuffix("/v1"),
            api_key=door.api_key,
            http_client=door.http_client,
            max_retries=door.retries,
        )
        self.options = {"model": "default", "max_tokens": 500, "system": SYSTEM}
        if door.tools:
            self.options["tools"] = TOOLS
        self.messages = []

    async def say(self, text, *, stream=False):
        self.messages.append({"role": "user", "content": text})
        return await until_text(self._stream if stream else self._ask, self._answer)

    def _answer(self, reply):
        results = [
            {"type": "tool_result", "tool_use_id": call_id, "content": run_tool(name, arguments)}
            for name, arguments, call_id in reply.calls
        ]
        self.messages.append({"role": "user", "content": results})

    def _keep(self, message, pieces=1):
        self.messages.append({"role": "assistant", "content": message.content})
        return shown(message, pieces)

    async def _ask(self):
        return self._keep(await self.client.messages.create(**self.options, messages=self.messages))

    async def _stream(self):
        pieces = 0
        async with self.client.messages.stream(**self.options, messages=self.messages) as stream:
            async for event in stream:
                pieces += event.type == "text"
            return self._keep(await stream.get_final_message(), pieces)

    async def leave(self, text):
        messages = [*self.messages, {"role": "user", "content": text}]
        async with self.client.messages.stream(**self.options, messages=messages) as stream:
            async for event in stream:
                if event.type == "text":
                    return


class Anthropic(Client):
    """The async client."""

    name = "anthropic"
    finish = ("end_turn", "tool_use")

    def talk(self, door):
        return _Messages(door)
