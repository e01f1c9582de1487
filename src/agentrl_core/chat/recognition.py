"""Choose the tool-call parser and the reasoning format that fit a model's chat template.

Used when the configuration says `auto`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from agentrl_core.api.reasoning import REASONING_FORMATS
from agentrl_core.chat.parsers.glm4 import Glm4Parser
from agentrl_core.chat.parsers.harmony import HarmonyParser
from agentrl_core.chat.parsers.hermes import HermesParser
from agentrl_core.chat.parsers.llama3 import Llama3Parser
from agentrl_core.chat.parsers.minicpm import MiniCPMParser
from agentrl_core.chat.parsers.mistral import MistralParser
from agentrl_core.chat.parsers.qwen3_coder import Qwen3CoderParser
from agentrl_core.chat.parsers.sections import DeepSeekParser, KimiK2Parser

if TYPE_CHECKING:
    from agentrl_core.api.reasoning import ReasoningFormat
    from agentrl_core.api.tool_parsers import ToolParser


_PARSERS: Sequence[tuple[tuple[str, ...], Callable[[str], ToolParser]]] = (
    (("<|channel|>",), lambda _: HarmonyParser()),
    (("<arg_key>",), lambda _: Glm4Parser()),
    (("<function=", "<parameter="), lambda _: Qwen3CoderParser()),
    ((KimiK2Parser.openers[0],), lambda _: KimiK2Parser()),
    ((DeepSeekParser.openers[0],), lambda template: DeepSeekParser(fenced="```" in template)),
    (("[TOOL_CALLS]",), lambda template: MistralParser(arrays="[ARGS]" not in template)),
    (("<|tool_call_start|>",), lambda _: MiniCPMParser()),
    (("<|python_tag|>",), lambda _: Llama3Parser()),
    (("<|start_header_id|>", '"parameters"'), lambda _: Llama3Parser()),
)
"""Strings in a template → constructor of the parser for the models that use it; the first entry whose strings all occur
wins."""


def recognise_parser(template: str) -> ToolParser:
    """Return the parser of the tool-call format that a template shows; the Hermes parser if it shows none."""
    for shown, make in _PARSERS:
        if all(text in template for text in shown):
            return make(template)
    return HermesParser()


def recognise_reasoning(template: str, is_token: Callable[[str], bool]) -> ReasoningFormat:
    """Return the reasoning format whose opening tag is in the template or is a token of the vocabulary."""
    for name in ("minicpm", "mistral", "think"):
        found = REASONING_FORMATS[name]
        if found.open in template or is_token(found.open):
            return found
    return REASONING_FORMATS["none"]
