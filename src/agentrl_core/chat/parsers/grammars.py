"""Write the Lark rules that hold a model to a call of the tools that it was given."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from agentrl_core.chat.parsers.schemas import name_of, parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentrl_core.api.tool_parsers import Tools


BLANKS = r"[ \n\r\t]{1,24}"
"""Between the tokens of JSON. Bounded, because a policy that falls into blanks would otherwise never leave them."""


def literal(text: str) -> str:
    """Return a text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


def text_up_to(name: str, end: str) -> str:
    """Return the rule `name` of any text that ends with the first `end`, a mark or a literal."""
    if end.startswith("<"):
        return f"{name}: /(.|\\n)*/ {end}\n"
    return f"{name}[suffix={end}]: /(.|\\n)*/\n"


def one_or_more(*, parallel: bool, between: str) -> str:
    """Return the rule `calls`: one `call`, or several with `between` in between."""
    return f"calls: call ({between} call)*\n" if parallel else "calls: call\n"


def by_tool(tools: Tools, rule: Callable[[str, str], str]) -> str:
    """Return the rule `call` as a choice: `rule` makes one of a tool's name and the name of its arguments' rule."""
    lines = [f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}"]
    for index, tool in enumerate(tools):
        lines.append(f"call_{index}: {rule(name_of(tool), f'arguments_{index}')}")
        lines.append(f"arguments_{index}: {json_rule(parameters_of(tool))}")
    return "\n".join(lines) + "\n"


def json_rule(schema: Mapping[str, Any], *, lenient: bool = True) -> str:
    """Return the body of a rule for JSON by a schema.

    `lenient`: keywords that no grammar can express are left out, because agents have tools with any schema; else the
    engine refuses them.
    """
    guidance = {"whitespace_pattern": BLANKS, "lenient": lenient, "coerce_one_of": lenient}
    return f"%json {json.dumps({**schema, 'x-guidance': guidance})}"
