"""Matrix client for legacy completions in OpenAI's SDK, with an agent that writes the chat template itself."""

from __future__ import annotations

from types import MappingProxyType

from openai import AsyncOpenAI

from .base import SYSTEM, Client, Conversation, Shown

NO_TOOLS = "the API has neither tools nor messages"


class _Completions(Conversation):
    def __init__(self, door):
        self.client = AsyncOpenAI(
            base_url=door.base_url, api_key=door.api_key, http_client=door.http_client, max_retries=door.retries
        )
        self.prompt = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n"

    def _asked(self, text):
        return f"{self.prompt}<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"

    async def say(self, text, *, stream=False):
        prompt = self._asked(text)
        shown = await (self._stream if stream else self._ask)(prompt)
        self.prompt = f"{prompt}{shown.text}<|im_end|>\n"
        return [shown]

    async def _ask(self, prompt):
        reply = await self.client.completions.create(model="default", prompt=prompt)
        (choice,) = reply.choices
        usage = (reply.usage.prompt_tokens, reply.usage.completion_tokens)
        return Shown(text=choice.text, finish=choice.finish_reason, usage=usage, id=reply.id)

    async def _stream(self, prompt):
        options = {"model": "default", "prompt": prompt, "stream_options": {"include_usage": True}}
        chunks = [chunk async for chunk in await self.client.completions.create(**options, stream=True)]
        choices = [choice for chunk in chunks for choice in chunk.choices]
        (finish,) = [choice.finish_reason for choice in choices if choice.finish_reason]
        (usage,) = [chunk.usage for chunk in chunks if chunk.usage]
        return Shown(
            text="".join(choice.text for choice in choices),
            finish=finish,
            usage=(usage.prompt_tokens, usage.completion_tokens),
            id=chunks[0].id,
            pieces=sum(bool(choice.text) for choice in choices),
        )

    async def leave(self, text):
        stream = await self.client.completions.create(model="default", prompt=self._asked(text), stream=True)
        async with stream:
            async for chunk in stream:
                if chunk.choices[0].text:
                    return


class OpenAICompletions(Client):
    """The async client."""

    name = "openai completions"
    cannot = MappingProxyType(dict.fromkeys(("tools", "stream+tools", "parallel calls"), NO_TOOLS))

    def talk(self, door):
        return _Completions(door)
