"""Convert between chat messages and token ids: chat templates, tokenizers, and parsers of tool calls and reasoning."""

from agentrl_core.api.reasoning import ReasoningFormat
from agentrl_core.api.tool_parsers import ParsedReply, ToolParser
from agentrl_core.chat.facade import Chat
from agentrl_core.chat.replies import Piece, ReplyReader

__all__ = ["Chat", "ParsedReply", "Piece", "ReasoningFormat", "ReplyReader", "ToolParser"]
