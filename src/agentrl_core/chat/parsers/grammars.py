"""Write the Lark rules that hold a model to a call of the tools that it was given."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.chat.parsers.base import Tools

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def one_or_more(*, parallel: bool, between: str) -> str:
    """Return the rule `calls`: one `call`, or several with `between` in between."""
    return f"calls: call ({between} call)*\n" if parallel else "calls: call\n"


def parameters(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON schema of a tool's arguments."""
    schema = function(tool).get("parameters")
    return {**schema, "type": "object"} if isinstance(schema, dict) else ANY_OBJECT


def function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool's function, whether it is wrapped or bare."""
    inner = tool.get("function")
    return inner if isinstance(inner, dict) else tool


def name_of(tool: Mapping[str, Any]) -> str:
    """Return a tool's name."""
    return str(function(tool).get("name") or "")


def by_tool(tools: Tools, template: str) -> str:
    """Return the rule `call` as a choice of rules, one per tool, from a template with `{name}` and `{schema}`.

    `{name}` is replaced by the name as a quoted Lark string's inside, `{schema}` by the JSON schema's text.
    """
    rules = []
    for index, tool in enumerate(tools):
        rule = template.replace("{name}", json.dumps(name_of(tool), ensure_ascii=False)[1:-1])
        rules.append(f"call_{index}: {rule.replace('{schema}', f'arguments_{index}')}\n")
        rules.append(f"arguments_{index}: %json {json.dumps(parameters(tool), ensure_ascii=False)}\n")
    return f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}\n" + "".join(rules)
