"""Helpers that write Lark rules for tool calls, used by the `grammar` methods of the parsers.

They write rules only; `reply_grammar` combines these into the grammar of a whole reply.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from agentrl_core.api.parsing.schemas import name_of, parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentrl_core.api.tool_parsers import Tools


BLANKS = r"[ \n\r\t]{1,24}"
"""Whitespace between the tokens of JSON. Bounded, because a policy that begins to sample whitespace might otherwise
never stop."""


def literal(text: str) -> str:
    """Return `text` as a Lark string."""
    return json.dumps(text, ensure_ascii=False)


def text_up_to(name: str, end: str) -> str:
    """Return the rule `name`: any text up to and including the first `end`, a special token or a literal."""
    # Special tokens are written as `<[id]>`, literals in quotes.
    if end.startswith("<"):
        return f"{name}: /(.|\\n)*/ {end}\n"
    return f"{name}[suffix={end}]: /(.|\\n)*/\n"


def one_or_more(*, parallel: bool, between: str) -> str:
    """Return the rule `calls`: one `call`, or with `parallel` several separated by `between`."""
    return f"calls: call ({between} call)*\n" if parallel else "calls: call\n"


def by_tool(tools: Tools, rule: Callable[[str, str], str]) -> str:
    """Return the rule `call` as a choice between the tools.

    `rule` builds one alternative from a tool's name and the name of the rule of its arguments.
    """
    lines = [f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}"]
    for index, tool in enumerate(tools):
        lines.append(f"call_{index}: {rule(name_of(tool), f'arguments_{index}')}")
        lines.append(f"arguments_{index}: {json_rule(parameters_of(tool))}")
    return "\n".join(lines) + "\n"


def json_rule(schema: Mapping[str, Any], *, lenient: bool = True) -> str:
    """Return the body of a rule for JSON that fits a schema.

    `lenient` ignores keywords that no grammar can express, because agents bring tools with any schema. Otherwise the
    engine refuses them.
    """
    guidance = {"whitespace_pattern": BLANKS, "lenient": lenient, "coerce_one_of": lenient}
    return f"%json {json.dumps({**schema, 'x-guidance': guidance})}"
