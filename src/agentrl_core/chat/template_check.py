"""Check before a run how a chat template renders past turns, so that the user learns what multi-turn training does."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import attrs

from agentrl_core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agentrl_core.chat.facade import Chat
    from agentrl_core.types import Message


class Stability(enum.StrEnum):
    """Effect of the template on a sampled turn once the conversation continues."""

    STABLE = "prefix-stable"
    """Re-rendering gives the ids that were sampled."""
    PATCHED = "patched"
    """Re-rendering changes past turns; the gateway continues from the sampled ids instead."""
    FORKS = "forks"
    """The template cannot continue from some sampled turns; each of them ends its training sequence."""


@attrs.frozen(kw_only=True)
class TemplateCheck:
    """Result of the probe."""

    stability: Stability
    changed: tuple[str, ...] = ()
    """Kinds of turns that re-rendering changes."""
    forked: tuple[str, ...] = ()
    """Kinds of turns from which the template cannot continue."""

    def concerns(self, turns: Iterable[Message]) -> bool:
        """Return whether any of these turns of the past is of a kind that the template changes or forks at."""
        kinds = {*self.changed, *self.forked}
        return bool(kinds) and any(not kinds.isdisjoint(_kinds(turn)) for turn in turns)

    def __str__(self) -> str:
        if self.stability is Stability.STABLE:
            return "template check passed: multi-turn dialogues are trained exactly as sampled"
        parts = []
        if self.changed:
            parts.append(f"in multi-turn dialogues the template rewrites past turns with {', '.join(self.changed)}")
        if self.forked:
            parts.append(
                f"the template cannot continue from turns with {', '.join(self.forked)}: a new training sequence "
                "starts after each"
            )
        return "; ".join(parts)


def probe(chat: Chat) -> TemplateCheck:
    """Test plain replies, reasoning, tool calls and both, each followed by a user's message or a tool result."""
    changed, forked = [], []
    for kind, turn, following in _cases(thinks=bool(chat.reasoning.open)):
        try:
            start = chat.render(_BEFORE, _TOOLS)
            text = _sampled(chat, turn, start)
            whole = chat.render([*_BEFORE, turn, *following], _TOOLS)
        except RequestError:
            continue  # the template refuses such turns, so none is ever in the past
        after = chat.continuation_text([*_BEFORE, turn], following, _TOOLS)
        if after is None:
            forked.append(kind)
        elif start + text + after != whole:
            changed.append(kind)
    stability = Stability.FORKS if forked else Stability.PATCHED if changed else Stability.STABLE
    return TemplateCheck(stability=stability, changed=tuple(changed), forked=tuple(forked))


_BEFORE: list[Message] = [{"role": "user", "content": "a"}]
_TOOLS = [{"type": "function", "function": {"name": "f", "description": "f", "parameters": {"type": "object"}}}]
_CALL = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_THOUGHT = "why it is so"


def _cases(*, thinks: bool) -> Iterator[tuple[str, Message, list[Message]]]:
    """Yield kinds of turns: name, the turn, and the messages that follow it."""
    question: list[Message] = [{"role": "user", "content": "q"}]
    result: list[Message] = [{"role": "tool", "content": "r", "tool_call_id": "call_0"}]
    text: Message = {"role": "assistant", "content": "b"}
    call: Message = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    yield "plain text", text, question
    yield "tool calls", call, result
    # A format without separate reasoning leaves the <think> text in the content.
    if not thinks:
        yield "reasoning", {**text, "content": f"<think>\n{_THOUGHT}\n</think>\n\nb"}, question
    if thinks:
        yield "reasoning", {**text, "reasoning_content": _THOUGHT}, question
        yield "reasoning before tool calls", {**call, "reasoning_content": _THOUGHT}, result


def _kinds(turn: Message) -> set[str]:
    """Return the kinds of turns, as `_cases` names them, that a turn belongs to."""
    thinks = bool(turn.get("reasoning_content")) or "<think>" in str(turn.get("content"))
    if not turn.get("tool_calls"):
        return {"reasoning"} if thinks else {"plain text"}
    return {"tool calls", "reasoning", "reasoning before tool calls"} if thinks else {"tool calls"}


def _sampled(chat: Chat, turn: Message, start: str) -> str:
    """Return the text that a policy would sample for a turn after `start`: as the template shows it in last place."""
    shown = chat.render([*_BEFORE, turn], _TOOLS, add_generation_prompt=False).removeprefix(start)
    ends = [at for end in chat.end_texts if (at := shown.find(end)) >= 0]
    text = shown[: min(ends, default=len(shown))]
    if turn["content"] and turn["content"] not in text:
        return str(turn["content"])
    thought = turn.get("reasoning_content", "")
    # Some templates never show reasoning; the policy sampled it nevertheless.
    if thought and thought not in text:
        return f"{chat.reasoning.open}\n{thought}\n{chat.reasoning.close}\n\n{text}"
    return text
