"""Ask the policy what another chat model was asked, in the words of OpenAI's chat completions.

Providers name alike things differently, and LangChain leaves their names to them: this knows the names that their
models use for a reply's format and for the tool to call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json

from agentrl_langchain.messages import Json, to_openai

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.language_models.base import LangSmithParams
    from langchain_core.language_models.chat_models import BaseChatModel
    from langchain_core.messages import BaseMessage

_PASSED_ON = (
    "logprobs",
    "max_completion_tokens",
    "n",
    "parallel_tool_calls",
    "seed",
    "top_k",
    "top_logprobs",
    "top_p",
)
"""Arguments of a call that mean to the gateway what they mean to a provider."""

_FIELDS = ("n", "top_k", "top_p")
"""Of these, fields that models have."""

_FORMATS = (
    "response_format",
    "output_config",
    "format",
    "response_json_schema",
    "response_schema",
    "response_mime_type",
)
"""Where models, their `model_kwargs` and calls say what a reply must look like: OpenAI's and LangChain's own,
Anthropic's, Ollama's, Google's."""

_KNOWN_FORMATS = frozenset({"text", "json_object", "json_schema"})


def body_of(
    model: BaseChatModel, asked: LangSmithParams, messages: Sequence[BaseMessage], kwargs: Mapping[str, Any]
) -> Json:
    """Return the body of a request that asks what `model` was asked.

    `asked` are the settings that LangChain has one name for; `kwargs` are the call's own.
    """
    given = {**_settings(model), **kwargs}
    tools = [convert_to_openai_tool(tool) for tool in given.get("tools") or ()]
    body: Json = {
        "model": asked.get("ls_model_name") or "default",
        "messages": [to_openai(message) for message in messages],
        "temperature": asked.get("ls_temperature"),
        "max_tokens": asked.get("ls_max_tokens"),
        "stop": asked.get("ls_stop"),
        **{name: given[name] for name in _PASSED_ON if name in given},
        "tools": tools or None,
        **_tool_choice(given.get("tool_choice"), tools),
        "response_format": _response_format(wanted_format(model, kwargs)),
    }
    return {name: value for name, value in body.items() if value is not None}


def wanted_format(model: BaseChatModel, kwargs: Mapping[str, Any]) -> Any:
    """Return what a reply must look like, as the agent said it: a class, a schema or OpenAI's object; None if free."""
    given = {**_settings(model), **kwargs}
    if wanted := given.get("response_format"):
        return wanted
    if wanted := (given.get("output_config") or {}).get("format"):
        return wanted.get("schema")
    wanted = given.get("format")
    if wanted == "json" or isinstance(wanted, dict):
        return wanted if isinstance(wanted, dict) else {"type": "json_object"}
    if wanted := given.get("response_json_schema") or given.get("response_schema"):
        return wanted
    return {"type": "json_object"} if given.get("response_mime_type") == "application/json" else None


def parsed(text: str, wanted: Any) -> Json:
    """Return what stands beside a reply for which a pydantic class was wanted: `parsed`, as the parser expects it.

    What the class does not accept is left as a dict, for the parser to refuse: there `include_raw` catches it.
    """
    if not text or not isinstance(wanted, type) or not issubclass(wanted, BaseModel):
        return {}
    try:
        return {"parsed": wanted.model_validate_json(text)}
    except ValidationError:
        pass
    try:
        value = from_json(text)
    except ValueError:
        return {}
    return {"parsed": value} if isinstance(value, dict) else {}


def _settings(model: BaseChatModel) -> dict[str, Any]:
    """Return what the model itself was built with, beyond what LangChain has one name for."""
    found = {name: getattr(model, name, None) for name in (*_FIELDS, *_FORMATS)}
    if getattr(model, "logprobs", None) is True:  # a number, of some providers
        found |= {"logprobs": True, "top_logprobs": getattr(model, "top_logprobs", None)}
    further = getattr(model, "model_kwargs", None) or {}
    return found | {name: further[name] for name in (*_PASSED_ON, *_FORMATS) if name in further}


def _response_format(wanted: Any) -> Json | None:
    if wanted is None:
        return None
    if isinstance(wanted, dict):
        if wanted.get("type") in _KNOWN_FORMATS:
            return wanted
        return _json_schema(wanted.get("title") or "response", wanted, strict=False)
    schema = _strict(TypeAdapter(wanted).json_schema())
    return _json_schema(getattr(wanted, "__name__", "response"), schema, strict=True)


def _json_schema(name: str, schema: Json, *, strict: bool) -> Json:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": strict}}


def _strict(schema: Any) -> Any:
    """Close the objects of a class's schema as OpenAI's strict mode does: all its fields are written, and no others."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _strict(value) for key, value in schema.items()}
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        return {"additionalProperties": False, **closed, "required": list(schema["properties"])}
    return closed


def _tool_choice(value: Any, tools: Sequence[Json]) -> Json:
    """Return `tool_choice` in OpenAI's words; Anthropic's may also say that one call is enough."""
    if value is True or value == "any":
        return {"tool_choice": "required"}
    if isinstance(value, str) and value in {tool.get("function", {}).get("name") for tool in tools}:
        return {"tool_choice": _function(value)}
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in {"auto", "any", "none", "tool"}:
        return {"tool_choice": value or None}
    choice = _function(value.get("name")) if kind == "tool" else "required" if kind == "any" else kind
    return {"tool_choice": choice, **({"parallel_tool_calls": False} if value.get("disable_parallel_tool_use") else {})}


def _function(name: Any) -> Json:
    return {"type": "function", "function": {"name": name}}
