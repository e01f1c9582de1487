"""Declare the request fields that several APIs share, and parse those that are more than a number or a word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agentrl_core.errors import RequestError
from agentrl_core.gateway.call_types import ToolChoice
from agentrl_core.gateway.dialects.fields import wrong_type
from agentrl_core.gateway.dialects.shape import (
    accepted,
    anything,
    either,
    flag,
    integer,
    listed,
    number,
    one_of,
    shaped,
    text,
)
from agentrl_core.types import MOST_TOP_LOGPROBS, Grammar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.gateway.dialects.fields import Fields
    from agentrl_core.gateway.dialects.shape import Schema

MOST_CHOICES = 128
"""Largest `n`, as in OpenAI's API."""
_MOST_STOP_STRINGS = 16
_LONGEST_STOP_CHARS = 1000
"""Longest stop string; after every token the engine looks back over as many characters."""
_LONGEST_KEPT_CHARS = 4096
"""Most characters kept of an unknown field's value; longer values are shortened."""
_MOST_KEPT_BYTES = 65_536
"""Size of all unknown fields together, after shortening, above which a request is refused."""

_OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Variables of a chat template that the gateway sets itself; `chat_template_kwargs` must not contain them."""

_FALSE = frozenset({"false", "0", "no"})
_TRUE = frozenset({"true", "1", "yes"})

_STOP_STRING = text(minLength=1, maxLength=_LONGEST_STOP_CHARS)
STOP_STRINGS = listed(_STOP_STRING, "Texts that end the reply and are cut from it.", maxItems=_MOST_STOP_STRINGS)
SHARED: Mapping[str, Schema] = {
    "model": text("Name of a configured upstream; any other name is the policy."),
    "temperature": number("Temperature; `gateway.temperature` decides about trained calls.", minimum=0, maximum=2),
    "top_p": number(
        "Nucleus sampling; `gateway.temperature` decides about trained calls.", exclusiveMinimum=0, maximum=1
    ),
    "top_k": integer("Number of tokens to sample from, 0 or -1: all; as for top_p.", minimum=-1),
    "max_tokens": integer("Most tokens of the reply.", minimum=1),
    "stop": either(_STOP_STRING, STOP_STRINGS),
    "n": integer("Number of replies to each prompt.", minimum=1, maximum=MOST_CHOICES),
    "top_logprobs": integer("Number of the likeliest tokens to show at each position.", maximum=MOST_TOP_LOGPROBS),
    "stream": flag("Whether the reply comes as server-sent events."),
    "stream_options": accepted({}, include_usage=flag("Whether the stream ends with token counts.")),
    "return_token_ids": flag("Whether the reply has the token ids of prompt and output."),
    "tool_choice": either(one_of("auto", "none", "required"), anything(), about="Tools that may or must be called."),
    "parallel_tool_calls": flag("Whether the reply may make several calls.", default=True),
    "chat_template_kwargs": anything("Further variables of the chat template, such as `enable_thinking`."),
}
"""Fields of chat completions that other APIs have, too."""

_SCHEMA = shaped({"schema": anything("JSON schema of the reply's text.")})
RESPONSE_FORMAT = either(
    shaped({"type": one_of("text", "json_object")}),
    shaped({"type": one_of("json_schema"), "json_schema": _SCHEMA}),
    about="Form of the reply's text: any, a JSON object, or JSON of a schema.",
)


def shared(*names: str) -> dict[str, Schema]:
    """Return some of the shared fields."""
    return {name: SHARED[name] for name in names}


def shared_options(fields: Fields, headers: Mapping[str, str]) -> dict[str, Any]:
    """Read the options that have one name in all APIs, as arguments of `ChatRequest`."""
    return {
        "model": fields.text("model") or "default",
        "temperature": fields.number("temperature"),
        "top_p": fields.number("top_p"),
        "top_k": fields.integer("top_k"),
        "stream": fields.flag("stream"),
        "trainable": _parse_trainable(headers),
    }


def _parse_trainable(headers: Mapping[str, str]) -> bool:
    """Return whether a call may be trained: yes, unless it has the header `x-agentrl-trainable: false`."""
    value = headers.get("x-agentrl-trainable", "true").strip().lower()
    if value not in _TRUE | _FALSE:
        raise RequestError(400, "invalid_value", f"header x-agentrl-trainable is {value!r}; expected true or false")
    return value in _TRUE


def parse_tool_choice(value: Any, tools: Sequence[Mapping[str, Any]]) -> ToolChoice:
    """Check `tool_choice`: a word, the function that must be called, or the tools that may or must be called."""
    if value is None or value == "auto":
        return ToolChoice()
    if value == "none":
        return ToolChoice(mode="none")
    if value == "required":
        return _required((), tools)
    kind = value.get("type") if isinstance(value, dict) else None
    # OpenAI's form for several tools; mode and list are nested under the type's name.
    if kind == "allowed_tools":
        allowed = value.get("allowed_tools")
        mode = allowed.get("mode") if isinstance(allowed, dict) else None
        listed = allowed.get("tools") if isinstance(allowed, dict) else None
        if mode in ("auto", "required") and isinstance(listed, list) and listed:
            names = _known([_name_in(item) for item in listed], tools)
            return ToolChoice(names=names) if mode == "auto" else _required(names, tools)
    elif isinstance(value, dict) and kind in (None, "function", "custom"):
        return _required(_known([_name_in(value)], tools), tools)
    raise _wrong_choice(
        'must be "auto", "none", "required", {"type": "function", "function": {"name": …}} or '
        '{"type": "allowed_tools", "allowed_tools": {"mode": …, "tools": […]}}'
    )


def _required(names: tuple[str, ...], tools: Sequence[Mapping[str, Any]]) -> ToolChoice:
    if not tools:
        raise _wrong_choice("is required, but there are no tools")
    return ToolChoice(mode="required", names=names)


def _name_in(choice: Any) -> str:
    function = (
        choice.get("custom" if choice.get("type") == "custom" else "function") if isinstance(choice, dict) else None
    )
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise _wrong_choice('must name a tool as {"type": "function", "function": {"name": …}}')
    return name


def _known(names: Sequence[str], tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names if each is that of a tool; `RequestError` (400) otherwise."""
    known = [tool["function"]["name"] for tool in tools]
    for name in names:
        if name not in known:
            raise _wrong_choice(
                f"names the tool {name!r}; expected one of {', '.join(known) or 'the tools, of which there are none'}"
            )
    return tuple(names)


def parse_response_format(value: Any) -> Grammar | None:
    """Check `response_format` (text, a JSON object, or JSON of a schema) and return its grammar; None for text."""
    kind = value.get("type") if isinstance(value, dict) else None
    if value is None or kind == "text":
        return None
    if kind == "json_object":
        return Grammar(kind="json_object")
    described = value.get("json_schema") if kind == "json_schema" else None
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict):
        raise RequestError(
            400,
            "invalid_value",
            'response_format must be {"type": "text"}, {"type": "json_object"} or '
            '{"type": "json_schema", "json_schema": {"name": …, "schema": {…}}}',
            param="response_format",
        )
    return Grammar(kind="json_schema", value=orjson.dumps(schema).decode())


def parse_template_options(fields: Fields) -> Mapping[str, Any]:
    """Check `chat_template_kwargs` and return these further variables of the chat template."""
    value = fields.take("chat_template_kwargs")
    if not isinstance(value, dict | None):
        raise wrong_type("chat_template_kwargs", "must be an object")
    if taken := _OWN_VARIABLES.intersection(value or {}):
        raise RequestError(
            400,
            "invalid_value",
            f"chat_template_kwargs has {', '.join(sorted(taken))}, which the request's own fields set; leave it out",
            param="chat_template_kwargs",
        )
    return value or {}


def parse_stop(value: Any, name: str = "stop") -> tuple[str, ...]:
    """Check the stop strings of the field `name`, one string or a list, and return them."""
    strings = [value] if isinstance(value, str) else value or []
    if not isinstance(strings, list) or not all(isinstance(item, str) and item for item in strings):
        raise wrong_type(name, "must be a string or a list of strings, none empty")
    if len(strings) > _MOST_STOP_STRINGS:
        raise RequestError(400, "invalid_value", f"{name}: at most {_MOST_STOP_STRINGS} stop strings", param=name)
    if any(len(string) > _LONGEST_STOP_CHARS for string in strings):
        message = f"{name}: a stop string may have at most {_LONGEST_STOP_CHARS} characters"
        raise RequestError(400, "invalid_value", message, param=name)
    return tuple(strings)


def kept(unknown: Mapping[str, Any]) -> dict[str, Any]:
    """Return the unknown fields for the trace, with large values shortened to the beginning of their JSON.

    `RequestError` (400) if there are too many.
    """
    found: dict[str, Any] = {}
    for name, value in unknown.items():
        # Only the beginning of a text is encoded: encoding megabytes would block the event loop.
        shown = value[: _LONGEST_KEPT_CHARS + 1] if isinstance(value, str) else value
        text = orjson.dumps(shown).decode()
        found[name] = value if len(text) <= _LONGEST_KEPT_CHARS else f"{text[:_LONGEST_KEPT_CHARS]}…"
    if found and len(orjson.dumps(found)) > _MOST_KEPT_BYTES:
        raise RequestError(
            400, "invalid_value", f"the body has {len(found)} unknown fields, too many to keep; leave them out"
        )
    return found


def was_cut(value: Any) -> bool:
    """Return whether `kept` shortened this value, so that it is not the agent's any more."""
    # Shortened values are the only ones of this length that `kept` returns.
    return isinstance(value, str) and len(value) == _LONGEST_KEPT_CHARS + 1 and value.endswith("…")


def _wrong_choice(message: str) -> RequestError:
    return RequestError(400, "invalid_value", f"tool_choice {message}", param="tool_choice")
