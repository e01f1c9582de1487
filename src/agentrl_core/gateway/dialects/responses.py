"""Dialect of OpenAI's Responses API, `POST /v1/responses`; it combines the other `responses_…` modules.

`responses_input` and `responses_fields` parse, `responses_output` and `responses_stream` encode, `responses_stored`
serves earlier responses.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from agentrl_core.errors import RequestError
from agentrl_core.gateway.call_types import ChatRequest
from agentrl_core.gateway.dialects.fields import Fields
from agentrl_core.gateway.dialects.openai_fields import MOST_TOP_LOGPROBS, kept, parse_stop, parse_trainable
from agentrl_core.gateway.dialects.openai_replies import openai_error
from agentrl_core.gateway.dialects.responses_fields import (
    parse_choice,
    parse_include,
    parse_text_format,
    parse_thinking,
    parse_tools,
    refuse_unsupported,
    tool_of,
)
from agentrl_core.gateway.dialects.responses_input import parse_input
from agentrl_core.gateway.dialects.responses_output import ECHOED, ID_PREFIX, echo_of, frame, response_of
from agentrl_core.gateway.dialects.responses_stream import ResponsesWriter
from agentrl_core.gateway.history.ledger import INSTRUCTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.gateway.call_types import Decode, Reply

_TRUNCATIONS = (None, "auto", "disabled")


class OpenAIResponses:
    """Dialect of `POST /v1/responses`."""

    id_prefix = ID_PREFIX

    def parse(self, body: Any, headers: Mapping[str, str]) -> ChatRequest:
        """Check a decoded JSON body; `RequestError` (400) names the field at fault."""
        fields = Fields(body)
        # Taken from the body before the fields are read, as the response repeats them unchanged.
        asked = {name: body[name] for name in ECHOED if body.get(name) is not None}
        refuse_unsupported(fields)
        messages, replies = parse_input(fields.take("input"))
        instructions = fields.text("instructions")
        if instructions:
            messages = ({"role": "system", "content": instructions, INSTRUCTIONS: True}, *messages)
        tools = parse_tools(fields.take("tools"))
        logprobs, top = (
            parse_include(fields.take("include")),
            fields.integer("top_logprobs", least=0, most=MOST_TOP_LOGPROBS),
        )
        # Checked for its type only: this API's streams have no options with an effect here.
        Fields(fields.take("stream_options") or {}, "stream_options.")
        fields.flag("parallel_tool_calls")
        _check_metadata(fields)
        model = fields.text("model") or "default"
        return ChatRequest(
            api="responses",
            messages=messages,
            previous=fields.text("previous_response_id"),
            shown=frozenset(f"{ID_PREFIX}{reply}" for reply in replies),
            tools=tools,
            tool_choice=parse_choice(fields.take("tool_choice"), tools),
            parallel_tool_calls=asked.get("parallel_tool_calls") is not False,
            grammar=parse_text_format(fields.take("text")),
            template_options=parse_thinking(fields),
            model=model,
            temperature=fields.number("temperature", least=0.0, most=2.0),
            top_p=fields.number("top_p", above=0.0, most=1.0),
            top_k=fields.integer("top_k", least=-1),
            max_tokens=fields.integer("max_output_tokens", least=1),
            stop=parse_stop(fields.take("stop")),
            stream=fields.flag("stream"),
            logprobs=logprobs,
            top_logprobs=top or 0 if logprobs else 0,
            return_token_ids=fields.flag("return_token_ids") or headers.get("return_token_ids") in {"1", "true"},
            trainable=parse_trainable(headers),
            echo={**echo_of(asked), "instructions": instructions, "tools": [tool_of(tool) for tool in tools]},
            ignored=kept({**asked, **fields.rest()}),
        )

    def response(self, reply: Reply, decode: Decode) -> dict[str, Any]:
        """Build the body of a reply that is not streamed."""
        return response_of(reply, decode)

    def writer(self, request: ChatRequest, reply_id: str, prompt_tokens: int, decode: Decode) -> ResponsesWriter:  # noqa: ARG002 - told in the usage at the end
        """Build the encoder of a streamed reply."""
        begun = frame(reply_id, request.echo, model=request.model, created_at=int(time.time()))
        return ResponsesWriter(request=request, begun=begun, decode=decode)

    def error(self, error: RequestError) -> dict[str, Any]:
        """Build the body of a refusal."""
        return openai_error(_named(error))


def _named(error: RequestError) -> RequestError:
    """Return the error with `messages`, as the field is called in the gateway, renamed to this API's `input`."""
    if error.param != "messages":
        return error
    return RequestError(error.status, error.code, str(error), param="input")


def _check_metadata(fields: Fields) -> None:
    """Check the fields that are only recorded and repeated in the response."""
    if fields.take("truncation") not in _TRUNCATIONS:
        raise RequestError(400, "invalid_value", 'truncation must be "auto" or "disabled"', param="truncation")
    if not isinstance(fields.take("metadata"), dict | None):
        raise RequestError(400, "invalid_type", "metadata must be an object", param="metadata")
    fields.flag("store")
    fields.integer("max_tool_calls", least=1)
    for name in "user", "prompt_cache_key", "safety_identifier":
        fields.text(name)
