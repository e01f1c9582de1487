"""JSON schemas of requests, replies and errors for the OpenAPI document.

A request may have further fields, which are ignored and kept for the trace. Messages, items, blocks and tools, which
OpenAI and Anthropic document in full, are described as far as the gateway checks them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from agentrl_core.gateway.dialects.openai_fields import MOST_CHOICES, MOST_TOP_LOGPROBS

Schema: TypeAlias = dict[str, Any]

_ANY: Schema = {}
_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": ["boolean", "null"]}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "number"}
_MAYBE_TEXT: Schema = {"type": ["string", "null"]}
_MAYBE_OBJECT: Schema = {"type": ["object", "null"]}
_ID: Schema = {"type": "string", "minLength": 1}
_MOST_INTEGER = 2**31 - 1


def listed(items: Schema, **more: Any) -> Schema:
    """Build the schema of a list."""
    return {"type": "array", "items": items, **more}


def shaped(required: dict[str, Schema], /, **optional: Schema) -> Schema:
    """Build the schema of an object that may have further fields."""
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


def one_of(*values: str | None) -> Schema:
    """Build the schema of a choice among words."""
    return {"enum": list(values)}


def _whole(least: int, most: int = _MOST_INTEGER) -> Schema:
    return {"type": ["integer", "null"], "minimum": least, "maximum": most}


def _up_to(most: float, *, above: bool = False) -> Schema:
    return {"type": ["number", "null"], "exclusiveMinimum" if above else "minimum": 0, "maximum": most}


# The bounds below repeat those of `openai_fields`, which checks them.
_STOP_STRING: Schema = {"type": "string", "minLength": 1, "maxLength": 1000}
_STOP: Schema = {"anyOf": [{"type": "null"}, _STOP_STRING, listed(_STOP_STRING, maxItems=16)]}
_FUNCTION_TOOL = shaped({"function": shaped({"name": _TEXT})}, type=one_of("function"))
_CALL = shaped({"function": shaped({"name": _TEXT}, arguments=_TEXT)}, id=_TEXT, type=one_of("function"))
_CHAT_MESSAGE = shaped(
    {"role": one_of("system", "developer", "user", "assistant", "tool")},
    content={"anyOf": [_MAYBE_TEXT, listed(shaped({"type": one_of("text"), "text": _TEXT}))]},
    name=_MAYBE_TEXT,
    reasoning_content=_MAYBE_TEXT,
    tool_calls=listed(_CALL),
    tool_call_id=_MAYBE_TEXT,
)
_SAMPLED: dict[str, Schema] = {
    "model": {**_MAYBE_TEXT, "description": "A configured upstream's name; any other name is the policy."},
    "top_p": _up_to(1.0, above=True),
    "stream": _FLAG,
    "return_token_ids": _FLAG,
}
_OPENAI_SAMPLED: dict[str, Schema] = {
    **_SAMPLED,
    "temperature": _up_to(2.0),
    "top_k": _whole(-1),
    "stop": _STOP,
}
_STREAM_OPTIONS = {"type": ["object", "null"], "properties": {"include_usage": _FLAG}}

CHAT_REQUEST = shaped(
    {"messages": listed(_CHAT_MESSAGE, minItems=1)},
    **_OPENAI_SAMPLED,
    tools={"anyOf": [listed(_FUNCTION_TOOL), {"type": "null"}]},
    tool_choice={"anyOf": [one_of("auto", "none", "required", None), {"type": "object"}]},
    parallel_tool_calls=_FLAG,
    response_format=_MAYBE_OBJECT,
    chat_template_kwargs=_MAYBE_OBJECT,
    max_tokens=_whole(1),
    max_completion_tokens=_whole(1),
    n=_whole(1, MOST_CHOICES),
    stream_options=_STREAM_OPTIONS,
    logprobs=_FLAG,
    top_logprobs=_whole(0, MOST_TOP_LOGPROBS),
)
_TOKEN_IDS = listed({"type": "integer", "minimum": 0, "maximum": _MOST_INTEGER}, minItems=1)
COMPLETION_REQUEST = shaped(
    {
        "prompt": {
            "anyOf": [
                _TEXT,
                _TOKEN_IDS,
                listed({"anyOf": [_TEXT, _TOKEN_IDS]}, minItems=1, maxItems=MOST_CHOICES),
            ]
        }
    },
    **_OPENAI_SAMPLED,
    max_tokens=_whole(1),
    n=_whole(1, MOST_CHOICES),
    best_of=_whole(1),
    echo=_FLAG,
    suffix=_MAYBE_TEXT,
    logprobs=_whole(0, MOST_TOP_LOGPROBS),
    stream_options=_STREAM_OPTIONS,
)
RESPONSES_REQUEST = shaped(
    {"input": {"anyOf": [{"type": "string", "minLength": 1}, listed({"type": "object"}, minItems=1)]}},
    **_OPENAI_SAMPLED,
    instructions=_MAYBE_TEXT,
    previous_response_id=_MAYBE_TEXT,
    tools={"anyOf": [listed(shaped({"type": one_of("function"), "name": _TEXT})), {"type": "null"}]},
    tool_choice={"anyOf": [one_of("auto", "none", "required", None), {"type": "object"}]},
    parallel_tool_calls=_FLAG,
    text=_MAYBE_OBJECT,
    reasoning=_MAYBE_OBJECT,
    chat_template_kwargs=_MAYBE_OBJECT,
    include={"anyOf": [listed(_TEXT), {"type": "null"}]},
    max_output_tokens=_whole(1),
    max_tool_calls=_whole(1),
    metadata=_MAYBE_OBJECT,
    stream_options=_MAYBE_OBJECT,
    top_logprobs=_whole(0, MOST_TOP_LOGPROBS),
    truncation=one_of("auto", "disabled", None),
    store=_FLAG,
    user=_MAYBE_TEXT,
    prompt_cache_key=_MAYBE_TEXT,
    safety_identifier=_MAYBE_TEXT,
)
_BLOCKS = {"anyOf": [_TEXT, listed(shaped({"type": _TEXT}))]}
COUNT_REQUEST = shaped(
    {"messages": listed(shaped({"role": one_of("user", "assistant", "system"), "content": _BLOCKS}), minItems=1)},
    **_SAMPLED,
    system={"anyOf": [_MAYBE_TEXT, listed(shaped({"type": one_of("text"), "text": _TEXT}))]},
    tools={"anyOf": [listed(shaped({"name": _TEXT, "input_schema": {"type": "object"}})), {"type": "null"}]},
    tool_choice=_MAYBE_OBJECT,
    thinking=_MAYBE_OBJECT,
    output_config=_MAYBE_OBJECT,
    output_format=_MAYBE_OBJECT,
    chat_template_kwargs=_MAYBE_OBJECT,
    temperature=_up_to(1.0),
    top_k=_whole(0),
    stop_sequences={"anyOf": [listed(_STOP_STRING, maxItems=16), {"type": "null"}]},
)
MESSAGES_REQUEST: Schema = {
    **COUNT_REQUEST,
    "properties": {**COUNT_REQUEST["properties"], "max_tokens": {"type": "integer", "minimum": 1}},
    "required": [*COUNT_REQUEST["required"], "max_tokens"],
}
START_REQUEST = shaped(
    {"task_id": {"type": "string", "minLength": 1, "maxLength": 500}},
    api_key={"type": ["string", "null"], "minLength": 16, "description": "A key that the agent chooses."},
)
REWARD_REQUEST = shaped({"reward": _NUMBER}, interaction_id=_MAYBE_TEXT, session_id=_MAYBE_TEXT, final=_FLAG)
EXPORT_REQUEST = shaped(
    {"session_id": _ID},
    discount=_up_to(1.0),
    style=one_of("individual", "concat", None),
    drop_retry_orphans=_FLAG,
)

_USAGE = shaped({"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT})
_FINISH = one_of("stop", "length", "tool_calls")
CHAT_REPLY = shaped(
    {
        "id": _ID,
        "object": one_of("chat.completion"),
        "created": _COUNT,
        "model": _TEXT,
        "choices": listed(
            shaped(
                {
                    "index": _COUNT,
                    "message": shaped({"role": one_of("assistant"), "content": _MAYBE_TEXT}, tool_calls=listed(_CALL)),
                    "finish_reason": _FINISH,
                    "logprobs": _MAYBE_OBJECT,
                }
            ),
            minItems=1,
        ),
        "usage": _USAGE,
    },
    prompt_token_ids=listed(_COUNT),
)
COMPLETION_REPLY = shaped(
    {
        "id": _ID,
        "object": one_of("text_completion"),
        "created": _COUNT,
        "model": _TEXT,
        "choices": listed(
            shaped({"index": _COUNT, "text": _TEXT, "finish_reason": _FINISH, "logprobs": _MAYBE_OBJECT}), minItems=1
        ),
        "usage": _USAGE,
    }
)
RESPONSES_REPLY = shaped(
    {
        "id": {"type": "string", "pattern": "^resp_"},
        "object": one_of("response"),
        "created_at": _COUNT,
        "status": one_of("completed", "incomplete"),
        "model": _TEXT,
        "output": listed(shaped({"id": _ID, "type": one_of("reasoning", "message", "function_call")})),
        "usage": shaped({"input_tokens": _COUNT, "output_tokens": _COUNT, "total_tokens": _COUNT}),
    }
)
ITEMS = shaped({"object": one_of("list"), "data": listed({"type": "object"}), "has_more": {"type": "boolean"}})
MESSAGES_REPLY = shaped(
    {
        "id": {"type": "string", "pattern": "^msg_"},
        "type": one_of("message"),
        "role": one_of("assistant"),
        "model": _TEXT,
        "content": listed(shaped({"type": one_of("thinking", "text", "tool_use")}), minItems=1),
        "stop_reason": one_of("end_turn", "max_tokens", "stop_sequence", "tool_use"),
        "stop_sequence": _MAYBE_TEXT,
        "usage": shaped({"input_tokens": _COUNT, "output_tokens": _COUNT}),
    }
)
MODEL = shaped({"id": _ID, "object": one_of("model")})
MODELS = shaped({"object": one_of("list"), "data": listed(MODEL, minItems=1)})
SESSION = shaped({"session_id": _ID, "api_key": _ID, "base_url": _ID}, task={"type": "object"}, is_eval=_FLAG)
SESSIONS = shaped(
    {
        "sessions": listed(
            shaped({"session_id": _ID, "task_id": _ID, "state": one_of("open", "ended"), "interaction_count": _COUNT})
        ),
        "waiting": _COUNT,
    }
)
EXPORT = shaped({"session_id": _ID, "interactions": {"type": "object", "additionalProperties": {"type": "object"}}})
EVENT = shaped({"data": _TEXT}, event=_TEXT)
"""Event of a stream; its data are JSON as each API documents it, and `[DONE]` at the end in OpenAI's APIs."""
OPENAI_ERROR = shaped({"error": shaped({"message": _TEXT, "type": _TEXT, "param": _MAYBE_TEXT, "code": _TEXT})})
ANTHROPIC_ERROR = shaped({"type": one_of("error"), "error": shaped({"type": _TEXT, "message": _TEXT})})
