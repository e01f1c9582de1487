"""Recognise from a model's chat template how the model writes tool calls and thoughts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core.chat.parsers.hermes import HermesParser
from agentrl_core.chat.reasoning import REASONING_FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentrl_core.chat.parsers.base import ToolParser
    from agentrl_core.chat.reasoning import ReasoningFormat


def recognise_parser(template: str) -> ToolParser:  # noqa: ARG001 - one format so far
    """Return the parser of the format that a template shows; Hermes where it shows none."""
    return HermesParser()


def recognise_reasoning(template: str, is_token: Callable[[str], bool]) -> ReasoningFormat:
    """Return where a model thinks: as its template shows, or as its vocabulary has a token for it."""
    for name in ("minicpm", "mistral", "think"):
        found = REASONING_FORMATS[name]
        if found.open in template or is_token(found.open):
            return found
    return REASONING_FORMATS["none"]
