"""Parse the Responses API's own request fields: tools, tool choice, text format, include, reasoning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agentrl_core.errors import RequestError
from agentrl_core.gateway.call_types import ToolChoice, ToolForm
from agentrl_core.gateway.dialects.client_tools import ClientTools, flat_name
from agentrl_core.gateway.dialects.fields import wrong_type
from agentrl_core.gateway.dialects.openai_fields import parse_template_options, parse_tool_choice
from agentrl_core.gateway.dialects.shape import accepted, anything, either, listed, one_of, refused, shaped, text
from agentrl_core.types import Grammar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.gateway.dialects.fields import Fields

_LOGPROBS = "message.output_text.logprobs"
_FUNCTION_KEYS = ("description", "parameters", "strict")
_NO_THOUGHTS = ("none", "minimal")
"""Reasoning efforts that turn thinking off."""

_OWN_KINDS = ("function", "custom")
_OWN = shaped({"type": one_of(*_OWN_KINDS), "name": text()})
TOOLS = listed(
    either(_OWN, shaped({"type": one_of("namespace"), "name": text(), "tools": listed(_OWN)})),
    "The client's functions, custom tools (their input is a text), and groups of both.",
)
TEXT = accepted(
    {},
    format=either(
        shaped({"type": one_of("text", "json_object")}),
        shaped({"type": one_of("json_schema"), "schema": anything("JSON schema of the reply's text.")}),
    ),
)
_UNSUPPORTED = {
    "conversation": "conversations are not supported: use previous_response_id, or send the items again",
    "prompt": "stored prompts are not supported: send their text as instructions or input",
}
REFUSED = {name: refused(message) for name, message in _UNSUPPORTED.items()}


def refuse_unsupported(fields: Fields) -> None:
    """Refuse fields for services that the gateway lacks: background work, stored conversations and prompts."""
    if fields.flag("background"):
        raise _unsupported("background", "background responses are not supported: leave background out and wait")
    for name, message in _UNSUPPORTED.items():
        if fields.take(name) is not None:
            raise _unsupported(name, message)


def parse_tools(value: Any) -> ClientTools:
    """Check tools, those in namespaces included."""
    tools = ClientTools()
    if value is None:
        return tools
    if not isinstance(value, list):
        raise wrong_type("tools", "must be a list of tools")
    for index, tool in enumerate(value):
        where = f"tools[{index}]"
        if not isinstance(tool, dict) or tool.get("type") != "namespace":
            _add(tools, tool, where)
            continue
        name, members = tool.get("name"), tool.get("tools")
        if not isinstance(name, str) or not name or not isinstance(members, list):
            raise wrong_type(where, 'must look like {"type": "namespace", "name": …, "tools": […]}')
        for number, member in enumerate(members):
            _add(tools, member, f"{where}.tools[{number}]", name)
    tools.check_names()
    return tools


def tools_of(functions: Sequence[Mapping[str, Any]], forms: Mapping[str, ToolForm]) -> list[dict[str, Any]]:
    """Convert functions that the policy sees back to the tools that the client declared."""
    found: list[dict[str, Any]] = []
    groups: dict[str, list[dict[str, Any]]] = {}
    for tool in functions:
        function = tool["function"]
        form = forms.get(function["name"])
        into = found
        if form is not None and form.namespace:
            if form.namespace not in groups:
                groups[form.namespace] = []
                found.append({"type": "namespace", "name": form.namespace, "tools": groups[form.namespace]})
            into = groups[form.namespace]
        into.append(_tool_of(function, form))
    return found


def _tool_of(function: Mapping[str, Any], form: ToolForm | None) -> dict[str, Any]:
    name = function["name"] if form is None else form.name
    if form is not None and form.format is not None:
        return {"type": "custom", "name": name, "description": function.get("description"), "format": form.format}
    described = {key: function.get(key) for key in _FUNCTION_KEYS}
    return {"type": "function", "name": name, **described, "strict": bool(described["strict"])}


def parse_choice(value: Any, tools: Sequence[Mapping[str, Any]]) -> ToolChoice:
    """Check `tool_choice`: a word, a function that must be called, or the functions that may or must be called."""
    if value is None or isinstance(value, str):
        return parse_tool_choice(value, tools)
    kind = value.get("type") if isinstance(value, dict) else None
    if kind in ("function", "custom") and (name := _chosen(value)):
        return parse_tool_choice({"type": "function", "function": {"name": name}}, tools)
    if kind == "allowed_tools" and value.get("mode") in ("auto", "required") and isinstance(value.get("tools"), list):
        # Unlike in chat completions, mode and list are not nested here.
        known = {tool["function"]["name"] for tool in tools}
        # Hosted tools are not among the tools of the policy, whether they are refused or dropped.
        wanted = [_chosen(tool) for tool in value["tools"] if not _hosted(tool)]
        names = [name for name in wanted if name in known]
        if names and len(names) == len(wanted):
            return ToolChoice(mode=value["mode"], names=tuple(names))
        raise RequestError(
            400, "invalid_value", "tool_choice.tools must name functions that are in tools", param="tool_choice"
        )
    raise RequestError(
        400,
        "invalid_value",
        'tool_choice must be "auto", "none", "required", {"type": "function", "name": …} or '
        '{"type": "allowed_tools", "mode": "auto", "tools": […]}; hosted tools are not supported',
        param="tool_choice",
    )


def parse_text_format(text: Any) -> Grammar | None:
    """Check `text` (any text, any JSON object, or JSON of a schema) and return its grammar; None for any text."""
    form = text.get("format") if isinstance(text, dict) else text
    if form is None:
        return None
    match form:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return Grammar(kind="json_object")
        case {"type": "json_schema", "schema": dict(schema)}:
            return Grammar(kind="json_schema", value=orjson.dumps(schema).decode())
    raise RequestError(
        400,
        "invalid_value",
        'text.format must be {"type": "text"}, {"type": "json_object"} or '
        '{"type": "json_schema", "name": …, "schema": {…}}',
        param="text.format",
    )


def parse_include(value: Any) -> bool:
    """Check `include` and return whether it asks for log-probabilities."""
    if not isinstance(value, list | None):
        raise wrong_type("include", "must be a list of strings")
    return _LOGPROBS in (value or ())


def parse_thinking(fields: Fields) -> Mapping[str, Any]:
    """Check `reasoning` and `chat_template_kwargs`, and return the chat template's variables that they set.

    Templates without reasoning ignore these variables.
    """
    reasoning = fields.take("reasoning")
    if not isinstance(reasoning, dict | None):
        raise wrong_type("reasoning", "must be an object")
    options = parse_template_options(fields)
    return {"enable_thinking": False, **options} if (reasoning or {}).get("effort") in _NO_THOUGHTS else options


def _chosen(choice: Any) -> str:
    """Return the name that the policy sees of a tool in `tool_choice`; empty if it names none."""
    name, namespace = (choice.get("name"), choice.get("namespace") or "") if isinstance(choice, dict) else ("", "")
    return flat_name(name, namespace) if isinstance(name, str) and isinstance(namespace, str) else ""


def _hosted(tool: Any) -> str:
    """Return the kind of a tool that a provider would have to run; empty for all others."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    return kind if isinstance(kind, str) and kind not in _OWN_KINDS else ""


def _add(tools: ClientTools, tool: Any, where: str, namespace: str = "") -> None:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if hosted := _hosted(tool):
        tools.hosted[where] = hosted
        return
    if kind == "custom":
        tools.add_custom(tool, where, namespace)
        return
    if kind != "function" or not isinstance(tool.get("name"), str):
        raise wrong_type(where, 'must look like {"type": "function", "name": …}')
    # The SDK must send `strict`; false means the same as leaving it out, and must not make it another tool.
    described = {key: value for key in _FUNCTION_KEYS if (value := tool.get(key)) is not None and value is not False}
    name: str = flat_name(tool["name"], namespace)
    tools.functions.append({"type": "function", "function": {"name": name, **described}})
    if namespace:
        tools.forms[name] = ToolForm(name=tool["name"], namespace=namespace)


def _unsupported(param: str, message: str) -> RequestError:
    return RequestError(400, "unsupported_parameter", message, param=param)
