"""Recognise from a model's chat template how the model writes tool calls and thoughts."""

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
"""What a template shows -> the parser that reads what such a model writes; the first that fits."""


def recognise_parser(template: str) -> ToolParser:
    """Return the parser of the format that a template shows; Hermes where it shows none."""
    for shown, make in _PARSERS:
        if all(text in template for text in shown):
            return make(template)
    return HermesParser()


def recognise_reasoning(template: str, is_token: Callable[[str], bool]) -> ReasoningFormat:
    """Return where a model thinks: as its template shows, or as its vocabulary has a token for it."""
    for name in ("minicpm", "mistral", "think"):
        found = REASONING_FORMATS[name]
        if found.open in template or is_token(found.open):
            return found
    return REASONING_FORMATS["none"]
