"""Hooks of agentrl-parsers: register the parsers, each with the summary that `agentrl plugins list` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentrl_core import hookimpl

if TYPE_CHECKING:
    from agentrl_core import Register


@hookimpl
def register_tool_parsers(register: Register[Any]) -> None:
    """Register the parsers, in the order in which they are asked about a chat template."""
    parsers = "agentrl_parsers"
    register("harmony", f"{parsers}.harmony:HarmonyParser", summary="the channels of gpt-oss")
    register("glm4", f"{parsers}.glm4:Glm4Parser", summary="<arg_key> and <arg_value> of GLM 4.5 and later")
    register("kimi_k2", f"{parsers}.sections:KimiK2Parser", summary="sections of Kimi K2")
    register("deepseek", f"{parsers}.sections:DeepSeekParser", summary="DeepSeek V3, R1 and V3.1")
    register("mistral", f"{parsers}.mistral:MistralParser", summary="[TOOL_CALLS] and an array, or name[ARGS]{JSON}")
    register("minicpm", f"{parsers}.minicpm:MiniCPMParser", summary="Python calls of MiniCPM 3 and 4")
