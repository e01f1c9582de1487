"""Matrix client for LangChain's chat models: ChatOpenAI with both APIs, and ChatAnthropic."""

from __future__ import annotations

from contextlib import aclosing

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from .base import SYSTEM, Client, Conversation, Shown, add, run_tool, until_text


class _Model(Conversation):
    def __init__(self, model, door):
        self.model = model.bind_tools([tool(add)]) if door.tools else model
        self.messages = [SystemMessage(SYSTEM)]

    async def say(self, text, *, stream=False):
        self.messages.append(HumanMessage(text))
        return await until_text(self._stream if stream else self._ask, self._answer)

    def _answer(self, reply):
        for name, arguments, call_id in reply.calls:
            self.messages.append(ToolMessage(run_tool(name, arguments), tool_call_id=call_id))

    def _keep(self, message, pieces=1):
        self.messages.append(message)
        told = message.response_metadata
        return Shown(
            text=message.text,
            calls=tuple((call["name"], call["args"], call["id"]) for call in message.tool_calls),
            finish=told.get("finish_reason") or told.get("stop_reason") or told.get("status"),
            usage=(message.usage_metadata["input_tokens"], message.usage_metadata["output_tokens"]),
            id=told.get("id") or (None if message.id.startswith("lc_run-") else message.id),
            pieces=pieces,
        )

    async def _ask(self):
        return self._keep(await self.model.ainvoke(self.messages))

    async def _stream(self):
        whole, pieces = None, 0
        async for chunk in self.model.astream(self.messages):
            whole = chunk if whole is None else whole + chunk
            pieces += bool(chunk.text)
        return self._keep(whole, pieces)

    async def leave(self, text):
        async with aclosing(self.model.astream([*self.messages, HumanMessage(text)])) as chunks:
            async for chunk in chunks:
                if chunk.text:
                    return


class LangChainOpenAI(Client):
    """ChatOpenAI as it is by default."""

    name = "langchain-openai"
    hides_streamed = frozenset({"id"})
    by_responses = False

    def talk(self, door):
        model = ChatOpenAI(
            model="default",
            base_url=door.base_url,
            api_key=door.api_key,
            http_async_client=door.http_client,
            max_retries=door.retries,
            stream_usage=True,
            use_responses_api=self.by_responses,
        )
        return _Model(model, door)


class LangChainOpenAIResponses(LangChainOpenAI):
    """ChatOpenAI by the Responses API."""

    name = "langchain-openai (responses)"
    hides_streamed = frozenset()
    finish = ("completed", "completed")
    by_responses = True


class LangChainAnthropic(Client):
    """ChatAnthropic."""

    name = "langchain-anthropic"
    hides_streamed = frozenset({"id"})
    finish = ("end_turn", "tool_use")

    def talk(self, door):
        model = ChatAnthropic(
            model="default",
            base_url=door.base_url.removesuffix("/v1"),
            api_key=door.api_key,
            max_retries=door.retries,
            max_tokens=500,
        )
        model._async_client._client = door.http_client  # it takes none, and keeps its own for the whole process
        return _Model(model, door)
