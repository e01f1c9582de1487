"""Middleware `truncate`: shortens long results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from agentrl_tool_middleware.lengths import TextLength

if TYPE_CHECKING:
    from agentrl_core.api.tools import CallNext, ToolRequest, ToolResult


class Truncate:
    """Shortens the texts of a result; images stay. The model reads how much was left out.

    `max_chars` and `max_tokens` limit all texts of a result together. Tokens are those of `tokenizer`, a path of a
    `tokenizer.json` or its folder, relative to the config's; without it a token is taken for four bytes. `keep` is the
    end that stays, or `both`. `tools` names those that it concerns, None: all.
    """

    def __init__(
        self,
        *,
        max_chars: int | None = None,
        max_tokens: int | None = None,
        tokenizer: str | None = None,
        keep: Literal["head", "tail", "both"] = "head",
        tools: Sequence[str] | None = None,
        config_dir: Path | None = None,
    ) -> None:
        if max_chars is None and max_tokens is None:
            raise ValueError("'max_chars': set max_chars, max_tokens or both")
        for name, value in (("max_chars", max_chars), ("max_tokens", max_tokens)):
            if value is not None and value < 1:
                raise ValueError(f"'{name}': expected at least 1, found {value}")
        self._max_chars, self._max_tokens, self._keep, self._tools = max_chars, max_tokens, keep, tools
        self._length = TextLength.of(tokenizer, config_dir)

    async def call(self, request: ToolRequest, call_next: CallNext) -> ToolResult:
        """Return the result, shortened if it is too long."""
        result = await call_next(request)
        if self._tools is not None and request.name not in self._tools:
            return result
        texts = [part["text"] for part in result.content if part.get("type") == "text"]
        whole = "\n".join(texts)
        kept = self._kept(whole)
        if kept == whole:
            return result
        others = [part for part in result.content if part.get("type") != "text"]
        return attrs.evolve(result, content=(_text(kept), *others))

    def _kept(self, text: str) -> str:
        room = len(text) if self._max_chars is None else min(len(text), self._max_chars)
        if self._max_tokens is not None:
            room = min(room, self._length.chars_within(text, self._max_tokens, tail=self._keep == "tail"))
        left_out = len(text) - room
        if not left_out:
            return text
        note = f"[… {left_out} characters left out …]"
        if self._keep == "head":
            return f"{text[:room]}\n{note}"
        if self._keep == "tail":
            return f"{note}\n{text[left_out:]}"
        head = (room + 1) // 2
        return f"{text[:head]}\n{note}\n{text[head + left_out :]}"


def _text(text: str) -> Mapping[str, Any]:
    return {"type": "text", "text": text}
