"""Between messages and token ids: template, tokenizer, parsers."""

from agentrl_core.chat.facade import Chat
from agentrl_core.chat.parsers.base import ParsedReply, ToolParser

__all__ = ["Chat", "ParsedReply", "ToolParser"]
