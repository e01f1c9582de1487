"""Build the OpenAPI document of all routes, `GET /v1/openapi.json`, for code generators and for fuzz tests."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import orjson

from agentrl_core import __version__
from agentrl_core.gateway.serving import openapi_schemas as schemas
from agentrl_core.gateway.serving.openapi_schemas import Schema, one_of, shaped

_DESCRIPTION = """Speaks OpenAI's chat completions, completions and Responses, and Anthropic's Messages, for one policy;
every call is recorded in its session. `/v1` may be left out. On the gateway's own machine a session's URL,
`/s/<token>`, may stand in place of its key."""

_SESSION: Sequence[Schema] = ({"bearer": []}, {"x-api-key": []})
_REFUSALS = {
    400: "The request is wrong; `error.param` names the field.",
    401: "No key, or one that was never issued.",
    403: "The key belongs to another session, or is not the admin key.",
    404: "Unknown URL, or an id that is not in this session.",
    409: "Not possible in the session's present state.",
    410: "The session has ended.",
    413: "The body is larger than 16 MiB.",
    429: "No capacity; try again later.",
    500: "The gateway, the engine or the store failed.",
    502: "An upstream failed.",
    503: "The gateway is at a limit or is closing; try again later.",
}
_CALL_REFUSALS = (400, 401, 403, 404, 410, 413, 429, 500, 502, 503)
_ADMIN_REFUSALS = (400, 401, 403, 409, 410, 413, 429, 500, 503)


@functools.cache
def document() -> bytes:
    """Return the document as JSON; it is the same for all clients and built once."""
    return orjson.dumps(
        {
            "openapi": "3.1.0",
            "info": {"title": "agentrl gateway", "version": __version__, "description": _DESCRIPTION},
            "security": _SESSION,
            "paths": {**_calls(), **_pages(), **_control()},
            "components": {
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer", "description": "A session's key, or the admin key."},
                    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                },
                # The module's upper-case constants: CHAT_REQUEST becomes ChatRequest.
                "schemas": {
                    name.title().replace("_", ""): value
                    for name, value in vars(schemas).items()
                    if name.isupper() and not name.startswith("_")
                },
            },
        }
    )


def _calls() -> dict[str, Any]:
    """Describe the routes of LLM calls."""
    routes = {
        "/v1/chat/completions": ("ChatRequest", "ChatReply", "OpenaiError"),
        "/v1/completions": ("CompletionRequest", "CompletionReply", "OpenaiError"),
        "/v1/responses": ("ResponsesRequest", "ResponsesReply", "OpenaiError"),
        "/v1/messages": ("MessagesRequest", "MessagesReply", "AnthropicError"),
    }
    retries = [
        _header("Idempotency-Key", {"type": "string"}, "The same key and body again get the same reply."),
        _header("x-agentrl-trainable", one_of("true", "false"), "`false` keeps the reply from being trained."),
    ]
    return {
        path: {
            "post": {
                **_operation(f"Ask for a reply: {path}", "call_", path),
                "parameters": retries,
                "requestBody": _body(request),
                "responses": {
                    "200": {
                        "description": "The reply; server-sent events if `stream` is true.",
                        "content": {**_json(_named(reply)), "text/event-stream": {"schema": _named("Event")}},
                    },
                    **_refusals(_CALL_REFUSALS, error),
                },
            }
        }
        for path, (request, reply, error) in routes.items()
    }


def _pages() -> dict[str, Any]:
    counted = shaped({"input_tokens": {"type": "integer", "minimum": 1}})
    shown = _in_path("response_id")
    return {
        "/v1/messages/count_tokens": {
            "post": {
                **_operation("Count the prompt's tokens", "count_", "tokens"),
                "requestBody": _body("CountRequest"),
                "responses": {"200": _answer(counted), **_refusals(_CALL_REFUSALS, "AnthropicError")},
            }
        },
        "/v1/responses/{response_id}": {
            "get": _get("Show an earlier response of this session", "ResponsesReply", shown),
        },
        "/v1/responses/{response_id}/input_items": {
            "get": _get("List what an earlier response answered", "Items", shown),
        },
        "/v1/models": {"get": _get("List the models", "Models")},
        "/v1/models/{name}": {"get": _get("Describe a model", "Model", _in_path("name"))},
        "/v1/openapi.json": {"get": _get("This document, for sessions and the admin", {"type": "object"})},
        "/health": {
            "get": {
                **_operation("Whether the gateway is up; the one route for everybody", "get_", "health"),
                "security": [],
                "responses": {"200": _answer(shaped({"status": one_of("ok")})), **_refusals((500, 503))},
            }
        },
    }


def _control() -> dict[str, Any]:
    """Describe the routes of online sessions; all but those for a session's own key need the admin key."""
    posts: dict[str, tuple[str, str | None, str | Schema]] = {
        "/rl/start_session": ("Open a session", "StartRequest", "Session"),
        "/rl/end_session": (
            "End the session of the key",
            None,
            shaped({"interaction_count": {"type": "integer", "minimum": 0}}),
        ),
        "/rl/set_reward": (
            "Reward a call, with the session's key, or with the admin key and its id",
            "RewardRequest",
            shaped({"message": one_of("success")}),
        ),
        "/export_trajectories": ("Wait for a session's end, and take its calls", "ExportRequest", "Export"),
        "/grant_capacity": (
            "Let one more session be opened outside training",
            None,
            shaped({"capacity": {"type": "integer", "minimum": 1}}),
        ),
    }
    paths: dict[str, Any] = {}
    for path, (summary, request, reply) in posts.items():
        paths[path] = {
            "post": {
                **_operation(summary, "", path),
                **({"requestBody": _body(request)} if request else {}),
                "responses": {"200": _answer(reply), **_refusals(_ADMIN_REFUSALS)},
            }
        }
    paths["/rl/sessions"] = {"get": _get("List the sessions of agents from elsewhere", "Sessions")}
    return paths


def _operation(summary: str, prefix: str, name: str) -> dict[str, Any]:
    return {"summary": summary, "operationId": prefix + name.strip("/").replace("/", "_").removeprefix("v1_")}


def _get(summary: str, reply: str | Schema, *parameters: Schema) -> dict[str, Any]:
    name = "_".join(word for word in summary.lower().replace(",", "").split() if word.isalpha())
    return {
        **_operation(summary, "", name),
        "parameters": list(parameters),
        "responses": {"200": _answer(reply), **_refusals((400, 401, 403, 404, 410, 500, 503))},
    }


def _body(schema: str) -> dict[str, Any]:
    return {"required": True, "content": _json(_named(schema))}


def _answer(schema: str | Schema) -> dict[str, Any]:
    return {"description": "Done.", "content": _json(_named(schema) if isinstance(schema, str) else schema)}


def _refusals(statuses: Sequence[int], error: str = "OpenaiError") -> dict[str, Any]:
    return {str(status): {"description": _REFUSALS[status], "content": _json(_named(error))} for status in statuses}


def _in_path(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "pattern": "^[^/]+$"}}


def _header(name: str, schema: Schema, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "schema": schema, "description": description}


def _named(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: Schema) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
