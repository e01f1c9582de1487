"""Translation of a call of any LangChain chat model into a request body of OpenAI's chat completions.

LangChain does not unify the arguments for a reply's format and for the choice of a tool: every provider's model has its
own names. This module knows the names of OpenAI, Anthropic, Google and Ollama.
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
"""Arguments of a call that are passed on as they are, because they mean the same to the gateway."""

_FIELDS = ("n", "top_k", "top_p")
"""Those of `_PASSED_ON` that chat models also have as fields."""

_FORMATS = (
    "response_format",
    "output_config",
    "format",
    "response_json_schema",
    "response_schema",
    "response_mime_type",
)
"""Names of the reply's format in models, their `model_kwargs` and calls.

The first is OpenAI's and LangChain's own, the second Anthropic's, the third Ollama's, the others Google's.
"""

_KNOWN_FORMATS = frozenset({"text", "json_object", "json_schema"})


def body_of(
    model: BaseChatModel, asked: LangSmithParams, messages: Sequence[BaseMessage], kwargs: Mapping[str, Any]
) -> Json:
    """Return the request body for a call of `model`, without fields that are None.

    `asked` holds the settings for which LangChain has a common name; `kwargs` are the arguments of this call.
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
    """Return the reply's format as the agent gave it: a class, a schema or OpenAI's object; None if it gave none."""
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
    """Return `{"parsed": OBJECT}` for a reply in the format of a pydantic class, as LangChain's parser expects it.

    JSON that the class does not accept stays a dict. The parser then refuses it, in the place where `include_raw`
    catches the error.
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
    """Return the settings of the model itself for which LangChain has no common name."""
    found = {name: getattr(model, name, None) for name in (*_FIELDS, *_FORMATS)}
    # Some providers' models have a number in `logprobs`, with another meaning.
    if getattr(model, "logprobs", None) is True:
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
    """Return a class's schema as OpenAI's strict mode reads it: every field is required, and others are forbidden."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _strict(value) for key, value in schema.items()}
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        return {"additionalProperties": False, **closed, "required": list(schema["properties"])}
    return closed


def _tool_choice(value: Any, tools: Sequence[Json]) -> Json:
    """Return `tool_choice` in OpenAI's form. Anthropic's form may also forbid parallel tool calls."""
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
