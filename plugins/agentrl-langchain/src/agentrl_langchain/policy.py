"""The policy of one episode as a LangChain chat model, over the gateway's chat completions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    convert_to_openai_messages,
)
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.output_parsers.openai_tools import make_invalid_tool_call, parse_tool_call
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import PrivateAttr

from agentrl_core import workflow_context

_PASSED_ON = frozenset({"tool_choice", "response_format", "parallel_tool_calls", "temperature", "max_tokens", "seed"})


class PolicyError(RuntimeError):
    """The gateway refused a request; the message is its own."""


class PolicyChatModel(BaseChatModel):
    """Answers with the policy of the episode in which it was made. Never retries."""

    model: str = "default"
    temperature: float | None = None
    max_tokens: int | None = None
    _episode: Any = PrivateAttr(default=None)
    _loop: Any = PrivateAttr(default=None)

    @classmethod
    def of_current_episode(cls) -> PolicyChatModel:
        """Bind to the running episode and its event loop."""
        policy = cls()
        policy._episode = workflow_context.get()
        policy._loop = asyncio.get_running_loop()
        return policy

    def with_settings_of(self, other: BaseChatModel) -> PolicyChatModel:
        """The same session, asked as `other` would ask: its model name, temperature and token limit."""
        name = getattr(other, "model_name", None) or getattr(other, "model", None)
        limit = getattr(other, "max_tokens", None)
        policy = PolicyChatModel(
            model=name if isinstance(name, str) else "default",
            temperature=getattr(other, "temperature", None),
            max_tokens=limit if isinstance(limit, int) else None,
            callbacks=other.callbacks,
            tags=other.tags,
            metadata=other.metadata,
            disable_streaming=other.disable_streaming,
        )
        policy._episode, policy._loop = self._episode, self._loop
        return policy

    @property
    def _llm_type(self) -> str:
        return "agentrl-policy"

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | Any],
        *,
        tool_choice: Any = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Offer tools on every call."""
        if tool_choice is not None:
            kwargs["tool_choice"] = tool_choice
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002  # LangChain calls by keyword
        **kwargs: Any,
    ) -> ChatResult:
        reply = await self._post(self._body(messages, stop, kwargs))
        message = _message(reply)
        return ChatResult(
            generations=[ChatGeneration(message=message)], llm_output={"id": reply["id"], "model_name": reply["model"]}
        )

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,
    ) -> ChatResult:
        # synchronous nodes run in worker threads; the episode's client lives on the episode's loop
        return asyncio.run_coroutine_threadsafe(self._agenerate(messages, stop, **kwargs), self._loop).result()

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        body = self._body(messages, stop, kwargs) | {"stream": True, "stream_options": {"include_usage": True}}
        async with self._episode.http_client.stream("POST", self._url, json=body, headers=self._headers) as response:
            if response.status_code != 200:  # noqa: PLR2004  # HTTP's own
                await response.aread()
                raise PolicyError(_error_text(response))
            async for line in response.aiter_lines():
                chunk = _stream_chunk(line)
                if chunk is None:
                    continue
                if run_manager is not None and chunk.text:
                    await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                yield chunk

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        stream = self._astream(messages, stop, **kwargs)

        async def following() -> ChatGenerationChunk | None:
            return await anext(stream, None)

        while (chunk := asyncio.run_coroutine_threadsafe(following(), self._loop).result()) is not None:
            yield chunk

    @property
    def _url(self) -> str:
        return f"{self._episode.base_url}/v1/chat/completions"

    @property
    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._episode.api_key}"}

    def _body(self, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model, "messages": convert_to_openai_messages(messages)}
        settings = {"temperature": self.temperature, "max_tokens": self.max_tokens, "stop": stop}
        body |= {key: value for key, value in settings.items() if value is not None}
        body |= {key: value for key, value in kwargs.items() if key in _PASSED_ON and value is not None}
        if kwargs.get("tools"):
            body["tools"] = [convert_to_openai_tool(tool) for tool in kwargs["tools"]]
        return body

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        response = await self._episode.http_client.post(self._url, json=body, headers=self._headers)
        if response.status_code != 200:  # noqa: PLR2004  # HTTP's own
            raise PolicyError(_error_text(response))
        reply: dict[str, Any] = response.json()
        return reply


def _error_text(response: Any) -> str:
    """The gateway's own words."""
    try:
        return f"{response.status_code}: {response.json()['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"{response.status_code}: {response.text[:200]}"


def _message(reply: dict[str, Any]) -> AIMessage:
    """OpenAI's reply as LangChain's message; a tool call that is not JSON is kept as an invalid one."""
    choice = reply["choices"][0]
    calls, invalid = [], []
    for raw in choice["message"].get("tool_calls") or ():
        try:
            calls.append(parse_tool_call(raw, return_id=True))
        except Exception as error:  # noqa: BLE001  # whatever is wrong with it, the agent must see the call
            invalid.append(make_invalid_tool_call(raw, str(error)))
    return AIMessage(
        content=choice["message"].get("content") or "",
        tool_calls=calls,
        invalid_tool_calls=invalid,
        id=reply["id"],
        response_metadata={"id": reply["id"], "model_name": reply["model"], "finish_reason": choice["finish_reason"]},
        usage_metadata=_usage(reply.get("usage")),
    )


def _usage(usage: dict[str, Any] | None) -> Any:
    if not usage:
        return None
    return {
        "input_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
        "total_tokens": usage["total_tokens"],
    }


def _stream_chunk(line: str) -> ChatGenerationChunk | None:
    """One server-sent event as LangChain's chunk; None for lines that carry none."""
    if not line.startswith("data:") or line.endswith("[DONE]"):
        return None
    event = json.loads(line.removeprefix("data:"))
    choices = event.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    finish = choices[0].get("finish_reason")
    message = AIMessageChunk(
        content=delta.get("content") or "",
        id=event["id"],
        tool_call_chunks=[
            tool_call_chunk(
                name=(call.get("function") or {}).get("name"),
                args=(call.get("function") or {}).get("arguments"),
                id=call.get("id"),
                index=call.get("index"),
            )
            for call in delta.get("tool_calls") or ()
        ],
        usage_metadata=_usage(event.get("usage")),
        response_metadata={"id": event["id"], "finish_reason": finish} if finish else {},
    )
    return ChatGenerationChunk(message=message)
