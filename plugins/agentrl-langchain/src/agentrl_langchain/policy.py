"""LangChain chat model that asks the policy of one episode, by the gateway's chat completions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import httpx2
from langchain_core.exceptions import (
    ContextOverflowError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelError,
    ModelInvalidRequestError,
    ModelPermissionDeniedError,
)
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr

from agentrl_core.api.http import ssl_context
from agentrl_langchain.asking import body_of, parsed, wanted_format
from agentrl_langchain.messages import Parse, ReplyStream, to_replies

if TYPE_CHECKING:
    from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
    from langchain_core.language_models.base import LangSmithParams
    from langchain_core.messages import AIMessageChunk, BaseMessage

    from agentrl_core.api.context import WorkflowContext

_KEPT = ("name", "callbacks", "tags", "metadata", "verbose", "disable_streaming", "output_version")
"""Fields of the replaced model that control how LangChain treats a reply; the stand-in copies them."""

_OK = 200
_FIRST_SERVER_ERROR = 500
_REFUSALS: Mapping[int, type[ModelError]] = {401: ModelAuthenticationError, 403: ModelPermissionDeniedError}


class PolicyChatModel(BaseChatModel):
    """Stand-in for another chat model: makes the same request to an episode's policy.

    A refusal of the gateway is raised as LangChain's own `ModelError`. No request is sent twice.
    """

    cache: Literal[False] = False
    """No LLM cache: all records of a group would get the reply of the first one."""
    streaming: bool = False
    _episode: WorkflowContext = PrivateAttr()
    _replaced: BaseChatModel = PrivateAttr()

    @classmethod
    def in_place_of(cls, model: BaseChatModel, episode: WorkflowContext) -> PolicyChatModel:
        """Return a stand-in for `model`, for one call."""
        fields = (*_KEPT, "streaming") if "streaming" in model.model_fields_set else _KEPT
        policy = cls(**{name: getattr(model, name) for name in fields})
        policy._episode, policy._replaced = episode, model
        return policy

    @property
    def _llm_type(self) -> str:
        return "agentrl-policy"

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        """Return the replaced model's settings for a call, under LangChain's common names for all providers."""
        return self._replaced._get_ls_params(stop=stop, **kwargs)  # noqa: SLF001  # meant for subclasses, as this is

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,  # noqa: ARG002  # LangChain's signature
        **kwargs: Any,
    ) -> ChatResult:
        request = self._request(messages, stop, kwargs)
        return _result(await self._episode.http_client.post(**request), self._parse(kwargs))

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002  # LangChain's signature
        **kwargs: Any,
    ) -> ChatResult:
        with _blocking_client() as client:
            return _result(client.post(**self._request(messages, stop, kwargs)), self._parse(kwargs))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        request = self._request(messages, stop, kwargs, stream=True)
        async with self._episode.http_client.stream("POST", **request) as response:
            if response.status_code != _OK:
                await response.aread()
                raise _refusal(response)
            reply = ReplyStream(self._parse(kwargs))
            async for data in response.aiter_bytes():
                for message in reply.feed(data):
                    chunk = ChatGenerationChunk(message=message)
                    if run_manager is not None:
                        await run_manager.on_llm_new_token(_text(message), chunk=chunk)
                    yield chunk
            reply.close()

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        request = self._request(messages, stop, kwargs, stream=True)
        with _blocking_client() as client, client.stream("POST", **request) as response:
            if response.status_code != _OK:
                response.read()
                raise _refusal(response)
            reply = ReplyStream(self._parse(kwargs))
            for data in response.iter_bytes():
                for message in reply.feed(data):
                    chunk = ChatGenerationChunk(message=message)
                    if run_manager is not None:
                        run_manager.on_llm_new_token(_text(message), chunk=chunk)
                    yield chunk
            reply.close()

    def _request(
        self, messages: list[BaseMessage], stop: list[str] | None, kwargs: Mapping[str, Any], *, stream: bool = False
    ) -> dict[str, Any]:
        """Return the arguments for `post` or `stream` of an HTTP client."""
        body = body_of(self._replaced, self._get_ls_params(stop=stop, **kwargs), messages, kwargs)
        if stream:
            if body.get("n", 1) > 1:
                raise ValueError(f"n is {body['n']}, but a stream has one reply; fix: use `agenerate`, or set n to 1")
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return {
            "url": f"{self._episode.base_url}/v1/chat/completions",
            # A model may write half of a surrogate pair as an escape in its arguments. UTF-8 cannot encode it.
            "content": json.dumps(body, ensure_ascii=False).encode(errors="replace"),
            "headers": {"authorization": f"Bearer {self._episode.api_key}", "content-type": "application/json"},
            "timeout": self._episode.http_client.timeout,
        }

    def _parse(self, kwargs: Mapping[str, Any]) -> Parse:
        wanted = wanted_format(self._replaced, kwargs)
        return lambda text: parsed(text, wanted)


def _blocking_client() -> httpx2.Client:
    """Return a client for one synchronous call. Raises `RuntimeError` on a thread that runs an event loop.

    The client uses its own socket, not the episode's client. Waiting for the episodes' event loop could deadlock,
    because that loop may be waiting for this thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return httpx2.Client(verify=ssl_context(), trust_env=False)  # no proxy leads to this machine
    raise RuntimeError(
        "a synchronous LLM call (`invoke`, `stream`, `batch`) on the thread of an event loop would stop all "
        "episodes; fix: await `ainvoke` or `astream` there, or make the node a plain function, which LangGraph runs on "
        "its own thread"
    )


def _result(response: httpx2.Response, parse: Parse) -> ChatResult:
    if response.status_code != _OK:
        raise _refusal(response)
    messages = to_replies(response.json(), parse)
    return ChatResult(
        generations=[ChatGeneration(message=message) for message in messages],
        llm_output=dict(messages[0].response_metadata),
    )


def _refusal(response: httpx2.Response) -> ModelError:
    """Return LangChain's error for a refusal of the gateway, with the gateway's message."""
    status = response.status_code
    error = response.json()["error"]
    text = f"the policy refused the call ({status} {error['code']}): {error['message']}"
    if error["code"] == "context_length_exceeded":
        return ContextOverflowError(text)
    fallback = ModelAPIError if status >= _FIRST_SERVER_ERROR else ModelInvalidRequestError
    return _REFUSALS.get(status, fallback)(text)


def _text(chunk: AIMessageChunk) -> str:
    return str(chunk.text)
