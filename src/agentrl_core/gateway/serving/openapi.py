"""Build the OpenAPI document of all routes, `GET /v1/openapi.json`, for code generators and for fuzz tests."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from agentrl_core import __version__
from agentrl_core.gateway.dialects import (
    anthropic_messages,
    openai_chat,
    openai_completions,
    openai_messages,
    responses,
)
from agentrl_core.gateway.dialects.shape import Schema, anything, listed, one_of, shaped, text
from agentrl_core.gateway.members import routes as members
from agentrl_core.gateway.members.wire import GENERATE_REQUEST
from agentrl_core.gateway.online import routes
from agentrl_core.gateway.serving.web import MAX_BODY_BYTES

_DESCRIPTION = """Speaks OpenAI's chat completions, completions and Responses, and Anthropic's Messages, for one policy;
every call is recorded in its session. `/v1` may be left out. On the gateway's own machine a session's URL,
`/s/<token>`, may stand in place of its key."""

_CALL_HEADERS = {
    "Idempotency-Key": text("The same key and body again get the same reply."),
    "x-agentrl-trainable": one_of("true", "false", about="`false` keeps the reply from being trained."),
}
_REFUSALS = {
    400: "The request is wrong; `error.param` names the field.",
    401: "No key, or one that was never issued.",
    403: "The key belongs to another session, or is not the admin key.",
    404: "Unknown URL, or an id that is not in this session.",
    409: "Not possible in the session's present state.",
    410: "The session has ended.",
    413: f"The body is larger than {MAX_BODY_BYTES // 2**20} MiB.",
    429: "No capacity; try again later.",
    500: "The gateway, the engine or the store failed.",
    502: "An upstream failed.",
    503: "The gateway is at a limit or is closing; try again later.",
}
_REQUESTS = {
    "ChatRequest": openai_chat.REQUEST,
    "CompletionRequest": openai_completions.REQUEST,
    "ResponsesRequest": responses.REQUEST,
    "MessagesRequest": anthropic_messages.REQUEST,
    "CountRequest": anthropic_messages.COUNT_REQUEST,
    "StartRequest": routes.START_REQUEST,
    "RewardRequest": routes.REWARD_REQUEST,
    "ExportRequest": routes.EXPORT_REQUEST,
    "OpenRequest": members.OPEN_REQUEST,
    "CloseRequest": members.CLOSE_REQUEST,
    "GenerateRequest": GENERATE_REQUEST,
}
_CALL_REFUSALS = (400, 401, 403, 404, 410, 413, 429, 500, 502, 503)
_GET_REFUSALS = (400, 401, 403, 404, 410, 500, 503)
_MEMBER_REFUSALS = (400, 401, 403, 404, 409, 410, 413, 429, 500, 502, 503)
_ADMIN_REFUSALS = (400, 401, 403, 409, 410, 413, 429, 500, 503)

_TEXT, _ID = text(), text(minLength=1)
_COUNT: Schema = {"type": "integer", "minimum": 0}
_POSITIVE: Schema = {"type": "integer", "minimum": 1}
_FLAG: Schema = {"type": "boolean"}
_MAYBE_TEXT: Schema = {"type": ["string", "null"]}
_MAYBE_OBJECT: Schema = {"type": ["object", "null"]}
_USAGE = shaped({"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT})
_OPENAI = {"id": _ID, "created": _COUNT, "model": _TEXT, "usage": _USAGE}
_ENDED: dict[str, Schema] = {"finish_reason": one_of("stop", "length", "tool_calls"), "logprobs": _MAYBE_OBJECT}
_MESSAGE = shaped({"role": one_of("assistant"), "content": _MAYBE_TEXT}, tool_calls=listed(openai_messages.CALL))
_MODEL = shaped({"id": _ID, "object": one_of("model")})
_LISTED = shaped({"session_id": _ID, "task_id": _ID, "state": one_of("open", "ended"), "interaction_count": _COUNT})

_ITEMS = ("reasoning", "message", "function_call", "custom_tool_call")
_RETRIEVAL = {
    "stream": {"type": "boolean", "description": "Whether the response comes as server-sent events."},
    "include[]": listed(text(), "Further parts of the response: `message.output_text.logprobs`."),
}

_REPLIES = {
    "ChatReply": shaped(
        {
            **_OPENAI,
            "object": one_of("chat.completion"),
            "choices": listed(shaped({"index": _COUNT, "message": _MESSAGE, **_ENDED}), minItems=1),
        },
        prompt_token_ids=listed(_COUNT),
    ),
    "CompletionReply": shaped(
        {
            **_OPENAI,
            "object": one_of("text_completion"),
            "choices": listed(shaped({"index": _COUNT, "text": _TEXT, **_ENDED}), minItems=1),
        }
    ),
    "ResponsesReply": shaped(
        {
            "id": text(pattern="^resp_"),
            "object": one_of("response"),
            "created_at": _COUNT,
            "status": one_of("completed", "incomplete"),
            "model": _TEXT,
            "output": listed(shaped({"id": _ID, "type": one_of(*_ITEMS)})),
            "usage": shaped({"input_tokens": _COUNT, "output_tokens": _COUNT, "total_tokens": _COUNT}),
        }
    ),
    "Items": shaped({"object": one_of("list"), "data": listed(anything()), "has_more": _FLAG}),
    "MessagesReply": shaped(
        {
            "id": text(pattern="^msg_"),
            "type": one_of("message"),
            "role": one_of("assistant"),
            "model": _TEXT,
            "content": listed(shaped({"type": one_of("thinking", "text", "tool_use")}), minItems=1),
            "stop_reason": one_of("end_turn", "max_tokens", "stop_sequence", "tool_use"),
            "stop_sequence": _MAYBE_TEXT,
            "usage": shaped({"input_tokens": _COUNT, "output_tokens": _COUNT}),
        }
    ),
    "TokenCount": shaped({"input_tokens": _POSITIVE}),
    "Model": _MODEL,
    "Models": shaped({"object": one_of("list"), "data": listed(_MODEL, minItems=1)}),
    "Document": anything(),
    "Health": shaped({"status": one_of("ok")}),
    "Session": shaped({"session_id": _ID, "api_key": _ID, "base_url": _ID}, task=anything(), is_eval=_FLAG),
    "Sessions": shaped({"sessions": listed(_LISTED), "waiting": _COUNT}),
    "Ended": shaped({"interaction_count": _COUNT}),
    "Rewarded": shaped({"message": one_of("success")}),
    "Export": shaped({"session_id": _ID, "interactions": {"type": "object", "additionalProperties": anything()}}),
    "Capacity": shaped({"capacity": _POSITIVE}),
    "Opened": shaped({"base_url": _ID, "api_key": _ID, "open_sessions": _COUNT}),
    "Closed": shaped({"interactions": listed(anything()), "refusal": _TEXT, "open_sessions": _COUNT}),
    "Generated": shaped(
        {
            "interaction": anything(),
            "prompt_tokens": _POSITIVE,
            "finish_reason": one_of("stop", "length", "tool_calls"),
        }
    ),
    "Status": shaped({"run_id": _ID, "version": _COUNT, "open_sessions": _COUNT}),
    "Tokenizer": shaped({"files": {"type": "object", "additionalProperties": _TEXT}}),
    # Data of events are JSON as each API documents it, and `[DONE]` at the end in OpenAI's APIs.
    "Event": shaped({"data": _TEXT}, event=_TEXT),
    "OpenaiError": shaped({"error": shaped({"message": _TEXT, "type": _TEXT, "param": _MAYBE_TEXT, "code": _TEXT})}),
    "AnthropicError": shaped({"type": one_of("error"), "error": shaped({"type": _TEXT, "message": _TEXT})}),
}


@functools.cache
def document() -> bytes:
    """Return the document as JSON; it is the same for all clients and built once."""
    return orjson.dumps(
        {
            "openapi": "3.1.0",
            "info": {"title": "agentrl gateway", "version": __version__, "description": _DESCRIPTION},
            "security": [{"bearer": []}, {"x-api-key": []}],
            "paths": _paths(),
            "components": {
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer", "description": "A session's key, or the admin key."},
                    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                },
                "schemas": {**_REQUESTS, **_REPLIES},
            },
        }
    )


def _paths() -> dict[str, Any]:
    shown, items = "Show an earlier response of this session", "List what an earlier response answered"
    up = "Whether the gateway is up; the one route for everybody"
    reward = "Reward a call, with the session's key, or with the admin key and its id"
    export = "Wait for a session's end, and take its calls"
    count = "Count the prompt's tokens", "count_tokens", "TokenCount", _CALL_REFUSALS, "CountRequest", "AnthropicError"
    return {
        "/v1/chat/completions": _call("chat_completions", "Chat"),
        "/v1/completions": _call("completions", "Completion"),
        "/v1/responses": _call("responses", "Responses"),
        "/v1/messages": _call("messages", "Messages", "AnthropicError"),
        "/v1/messages/count_tokens": {"post": _operation(*count)},
        "/v1/responses/{response_id}": _get(shown, "ResponsesReply", "response_id", query=_RETRIEVAL),
        "/v1/responses/{response_id}/input_items": _get(items, "Items", "response_id"),
        "/v1/models": _get("List the models", "Models"),
        "/v1/models/{name}": _get("Describe a model", "Model", "name"),
        "/v1/openapi.json": _get("This document, for sessions and the admin", "Document"),
        "/health": {"get": {**_operation(up, "get_health", "Health", (500, 503)), "security": []}},
        # Online sessions; all but those for a session's own key need the admin key.
        "/rl/start_session": _post("Open a session", "rl_start_session", "Session", "StartRequest"),
        "/rl/end_session": _post("End the session of the key", "rl_end_session", "Ended"),
        "/rl/set_reward": _post(reward, "rl_set_reward", "Rewarded", "RewardRequest"),
        "/rl/sessions": _get("List the sessions of agents from elsewhere", "Sessions"),
        "/export_trajectories": _post(export, "export_trajectories", "Export", "ExportRequest"),
        # Records that other processes of the run sample; all but `generate` need the admin key.
        "/rl/members/open_session": _member("Open the session of a record", "open_session", "Opened", "OpenRequest"),
        "/rl/members/close_session": _member(
            "Close the session of a record", "close_session", "Closed", "CloseRequest"
        ),
        "/rl/members/generate": _member("Sample one reply to token ids", "generate", "Generated", "GenerateRequest"),
        "/rl/members/status": _get("Show the state of this server", "Status"),
        "/rl/members/tokenizer": _get("Read the files of the tokenizer", "Tokenizer"),
        "/grant_capacity": _post("Let one more session be opened outside training", "grant_capacity", "Capacity"),
    }


def _call(name: str, api: str, error: str = "OpenaiError") -> dict[str, Any]:
    """Describe the route of an API's LLM calls."""
    summary = f"Ask for a reply: /v1/{name.replace('_', '/')}"
    operation = _operation(summary, f"call_{name}", f"{api}Reply", _CALL_REFUSALS, f"{api}Request", error)
    _stream(operation)
    headers = [
        {"in": "header", "name": name, "schema": schema, "description": schema["description"]}
        for name, schema in _CALL_HEADERS.items()
    ]
    return {"post": {**operation, "parameters": headers}}


def _get(summary: str, reply: str, *in_path: str, query: Mapping[str, Schema] | None = None) -> dict[str, Any]:
    name = "_".join(word for word in summary.lower().replace(",", "").split() if word.isalpha())
    operation = _operation(summary, name, reply, _GET_REFUSALS)
    parameters = [{"name": name, "in": "path", "required": True, "schema": text(pattern="^[^/]+$")} for name in in_path]
    if query is not None:
        _stream(operation)
        parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in query.items()]
    return {"get": {**operation, "parameters": parameters}}


def _stream(operation: Mapping[str, Any]) -> None:
    """Add server-sent events to the replies of an operation."""
    done = operation["responses"]["200"]
    done["description"] = "The reply; server-sent events if `stream` is true."
    done["content"] |= _content("Event", "text/event-stream")


def _post(summary: str, name: str, reply: str, request: str | None = None) -> dict[str, Any]:
    return {"post": _operation(summary, name, reply, _ADMIN_REFUSALS, request)}


def _member(summary: str, name: str, reply: str, request: str) -> dict[str, Any]:
    return {"post": _operation(summary, f"members_{name}", reply, _MEMBER_REFUSALS, request)}


def _operation(
    summary: str, name: str, reply: str, refusals: Sequence[int], request: str | None = None, error: str = "OpenaiError"
) -> dict[str, Any]:
    return {
        "summary": summary,
        "operationId": name,
        **({"requestBody": {"required": True, "content": _content(request)}} if request else {}),
        "responses": {
            "200": {"description": "Done.", "content": _content(reply)},
            **{str(status): {"description": _REFUSALS[status], "content": _content(error)} for status in refusals},
        },
    }


def _content(schema: str, kind: str = "application/json") -> dict[str, Any]:
    return {kind: {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
