"""Dialect of OpenAI's Responses API, `POST /v1/responses`; it combines the other `responses_…` modules.

`responses_input` and `responses_fields` parse, `responses_output` and `responses_stream` encode, `responses_stored`
serves earlier responses.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from agentrl_core.errors import RequestError
from agentrl_core.gateway.call_types import ChatRequest
from agentrl_core.gateway.dialects.client_tools import TOOL_FORMS
from agentrl_core.gateway.dialects.fields import Fields, wrong_type
from agentrl_core.gateway.dialects.openai_fields import SHARED, kept, parse_stop, shared, shared_options
from agentrl_core.gateway.dialects.openai_replies import openai_error
from agentrl_core.gateway.dialects.responses_fields import (
    REFUSED,
    TEXT,
    TOOLS,
    parse_choice,
    parse_include,
    parse_text_format,
    parse_thinking,
    parse_tools,
    refuse_unsupported,
    tools_of,
)
from agentrl_core.gateway.dialects.responses_input import INPUT, parse_input
from agentrl_core.gateway.dialects.responses_output import ECHOED, ID_PREFIX, echo_of, frame, response_of
from agentrl_core.gateway.dialects.responses_stream import ResponsesWriter
from agentrl_core.gateway.dialects.shape import accepted, anything, flag, integer, listed, one_of, text
from agentrl_core.gateway.history.ledger import INSTRUCTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.gateway.call_types import Decode, Reply, ReplyHead

_TRUNCATIONS = ("auto", "disabled")
_REPEATED_TEXTS = ("user", "prompt_cache_key", "safety_identifier")

REQUEST = accepted(
    {"input": INPUT},
    **shared("model", "temperature", "top_p", "top_k", "stop", "stream", "return_token_ids", "top_logprobs"),
    **shared("tool_choice", "parallel_tool_calls", "chat_template_kwargs"),
    **REFUSED,
    background=flag("Must be false: the gateway answers at once."),
    instructions=text("System prompt of this response; not part of the conversation that later ones continue."),
    previous_response_id=text("Earlier response of this session that the input continues."),
    tools=TOOLS,
    text=TEXT,
    reasoning=anything("Reasoning options; an `effort` of none or minimal turns thinking off."),
    include=listed(text(), "Further parts of the reply: `message.output_text.logprobs`."),
    max_output_tokens=SHARED["max_tokens"],
    max_tool_calls=integer("Only repeated in the response.", minimum=1),
    metadata=anything("Only repeated in the response."),
    stream_options=accepted({}),
    truncation=one_of(*_TRUNCATIONS, about="Only repeated in the response."),
    store=flag("Only repeated in the response: all responses of a session are kept.", default=True),
    **{name: text("Only repeated in the response.") for name in _REPEATED_TEXTS},
)


class OpenAIResponses:
    """Dialect of `POST /v1/responses`."""

    id_prefix = ID_PREFIX

    def parse(self, body: Any, headers: Mapping[str, str]) -> ChatRequest:
        """Check a decoded JSON body; `RequestError` (400) names the field at fault."""
        fields = Fields(body, REQUEST)
        # Taken from the body before the fields are read, as the response repeats them unchanged.
        asked = {name: body[name] for name in ECHOED if body.get(name) is not None}
        unknown = {name: value for name, value in fields.rest().items() if name != TOOL_FORMS}
        refuse_unsupported(fields)
        messages, replies = parse_input(fields.take("input"))
        instructions = fields.text("instructions")
        if instructions:
            messages = ({"role": "system", "content": instructions, INSTRUCTIONS: True}, *messages)
        declared = parse_tools(fields.take("tools"))
        tools = tuple(declared.functions)
        logprobs, top = parse_include(fields.take("include")), fields.integer("top_logprobs")
        # Checked for its type only: this API's streams have no options with an effect here.
        fields.inside("stream_options")
        parallel = fields.flag("parallel_tool_calls")
        _check_metadata(fields)
        return ChatRequest(
            api="responses",
            messages=messages,
            previous=fields.text("previous_response_id"),
            shown=frozenset(f"{ID_PREFIX}{reply}" for reply in replies),
            tools=tools,
            tool_forms=declared.forms,
            hosted_tools=declared.hosted,
            tool_choice=parse_choice(fields.take("tool_choice"), tools),
            parallel_tool_calls=parallel,
            grammar=parse_text_format(fields.take("text")),
            template_options=parse_thinking(fields),
            **shared_options(fields, headers),
            max_tokens=fields.integer("max_output_tokens"),
            stop=parse_stop(fields.take("stop")),
            logprobs=logprobs,
            top_logprobs=top or 0 if logprobs else 0,
            return_token_ids=fields.flag("return_token_ids") or headers.get("return_token_ids") in {"1", "true"},
            echo={**echo_of(asked), "instructions": instructions, "tools": tools_of(tools, declared.forms)},
            ignored={**kept({**asked, **unknown}), **declared.note()},
        )

    def response(self, reply: Reply, decode: Decode) -> dict[str, Any]:
        """Build the body of a reply that is not streamed."""
        return response_of(reply, decode)

    def writer(self, request: ChatRequest, head: ReplyHead, decode: Decode) -> ResponsesWriter:
        """Build the encoder of a streamed reply."""
        begun = frame(head, request.echo, model=request.model, created_at=int(time.time()))
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
    if fields.take("truncation") not in (None, *_TRUNCATIONS):
        raise RequestError(400, "invalid_value", 'truncation must be "auto" or "disabled"', param="truncation")
    if not isinstance(fields.take("metadata"), dict | None):
        raise wrong_type("metadata", "must be an object")
    fields.flag("store")
    fields.integer("max_tool_calls")
    for name in _REPEATED_TEXTS:
        fields.text(name)
