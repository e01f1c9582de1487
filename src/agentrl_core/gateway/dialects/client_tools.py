"""Show the policy a client's custom tools, and tools in namespaces, as functions, which templates and parsers know.

A tool `run` in the namespace `shell` is the function `shell__run`. A custom tool, which takes a text, is a function of
the one argument `input`. The client gets calls in the tool's own form. When it sends them back in the history, they
become the same function's calls again, so the conversation is recognised.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.errors import RequestError
from agentrl_core.gateway.call_types import ToolForm
from agentrl_core.gateway.dialects.fields import text_of, wrong_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.types import Interaction

TOOL_FORMS = "tool_forms"
"""Key of `Interaction.requested` under which the forms of a call's tools are stored."""

_ANY_TEXT = {"type": "text"}


@attrs.define
class ClientTools:
    """Tools of a request, collected one by one."""

    functions: list[Mapping[str, Any]] = attrs.field(factory=list)
    """Functions that the policy sees, in the shape of chat completions."""
    forms: dict[str, ToolForm] = attrs.field(factory=dict)
    """Forms of those that are no plain functions, by name."""
    hosted: dict[str, str] = attrs.field(factory=dict)
    """Kinds of the tools that a provider would have to run, by their places in the request."""

    def add_custom(self, tool: Any, where: str, namespace: str = "") -> None:
        """Add a custom tool: an object with a name, perhaps with a description and a format."""
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            raise wrong_type(where, "must have the name of a custom tool")
        name, form = flat_name(tool["name"], namespace), tool.get("format") or _ANY_TEXT
        function = {"name": name, "parameters": _parameters(form, f"{where}.format")}
        if description := text_of(tool, "description", where):
            function["description"] = description
        self.functions.append({"type": "function", "function": function})
        self.forms[name] = ToolForm(name=tool["name"], namespace=namespace, format=form)

    def check_names(self) -> None:
        """Raise `RequestError` (400) if two tools have one name for the policy, so that a call could be of either."""
        counts = Counter(tool["function"]["name"] for tool in self.functions)
        for name in self.forms:
            if counts[name] > 1:
                message = f"tools: two tools are {name!r} for the policy; rename one of them"
                raise RequestError(400, "invalid_value", message, param="tools")

    def note(self) -> dict[str, Any]:
        """Return what the trace keeps of the forms."""
        return {TOOL_FORMS: {name: attrs.asdict(form) for name, form in self.forms.items()}} if self.forms else {}


def forms_of(interaction: Interaction) -> dict[str, ToolForm]:
    """Return the forms of a stored call's tools; only the Responses API stores them, as it shows responses again."""
    if interaction.api != "responses":
        return {}
    return {name: ToolForm(**form) for name, form in interaction.requested.get(TOOL_FORMS, {}).items()}


def flat_name(name: str, namespace: str) -> str:
    """Return the name by which the policy knows a tool; an empty namespace is none."""
    return f"{namespace}__{name}" if namespace else name


def _parameters(form: Any, where: str) -> dict[str, Any]:
    """Return the schema of a custom tool's one argument; a grammar is only described, as functions have none."""
    argument = {"type": "string"}
    if isinstance(form, dict) and form.get("type") == "grammar":
        # Chat completions put the grammar one level deeper than the Responses API.
        grammar = form.get("grammar", form)
        if not isinstance(grammar, dict) or not isinstance(grammar.get("definition"), str):
            raise wrong_type(where, "must have the definition of its grammar")
        argument["description"] = f"A text of this {grammar.get('syntax', '')} grammar:\n{grammar['definition']}"
    elif form != _ANY_TEXT:
        raise wrong_type(where, 'must be {"type": "text"} or {"type": "grammar", …}')
    return {"type": "object", "properties": {"input": argument}, "required": ["input"]}
