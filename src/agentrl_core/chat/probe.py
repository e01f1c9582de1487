"""Find out, before a run, how a chat template treats turns that lie in the past."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import attrs

from agentrl_core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentrl_core.chat.facade import Chat
    from agentrl_core.types import Message


class Stability(enum.StrEnum):
    """What becomes of a sampled turn when the conversation goes on."""

    STABLE = "prefix-stable"
    """Rendering anew gives the ids that were sampled."""
    PATCHED = "patched"
    """Rendering anew changes past turns; the gateway goes on from the sampled ids in place of that."""
    FORKS = "forks"
    """The template offers no way on from some sampled turns: each begins a sequence of its own."""


@attrs.frozen(kw_only=True)
class TemplateVerdict:
    """What the probe found."""

    stability: Stability
    changed: tuple[str, ...] = ()
    """Kinds of turns that rendering anew changes."""
    forked: tuple[str, ...] = ()
    """Kinds of turns from which there is no way on."""

    def __str__(self) -> str:
        if self.stability is Stability.STABLE:
            return "template check passed: multi-turn dialogues are trained exactly as sampled"
        parts = []
        if self.changed:
            parts.append(f"in dialogues of several turns the template rewrites those with {', '.join(self.changed)}")
        if self.forked:
            parts.append(f"offers no way on from turns with {', '.join(self.forked)}, which begin new sequences")
        return " and ".join(parts)


def probe(chat: Chat) -> TemplateVerdict:
    """Try plain replies, thoughts, tool calls and both, each as a turn that a user or a tool follows."""
    changed, forked = [], []
    for kind, turn, following in _cases(thinks=bool(chat.reasoning.open)):
        try:
            start = chat.render(_BEFORE, _TOOLS)
            text = _sampled(chat, turn, start)
            whole = chat.render([*_BEFORE, turn, *following], _TOOLS)
        except RequestError:
            continue  # such turns never get as far
        after = chat.continuation_text([*_BEFORE, turn], following, _TOOLS)
        if after is None:
            forked.append(kind)
        elif start + text + after != whole:
            changed.append(kind)
    stability = Stability.FORKS if forked else Stability.PATCHED if changed else Stability.STABLE
    return TemplateVerdict(stability=stability, changed=tuple(changed), forked=tuple(forked))


_BEFORE: list[Message] = [{"role": "user", "content": "a"}]
_TOOLS = [{"type": "function", "function": {"name": "f", "description": "f", "parameters": {"type": "object"}}}]
_CALL = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_THOUGHT = "why it is so"


def _cases(*, thinks: bool) -> Iterator[tuple[str, Message, list[Message]]]:
    """Kinds of turns with what follows them."""
    question: list[Message] = [{"role": "user", "content": "q"}]
    result: list[Message] = [{"role": "tool", "content": "r", "tool_call_id": "call_0"}]
    text: Message = {"role": "assistant", "content": "b"}
    call: Message = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    yield "plain text", text, question
    yield "tool calls", call, result
    if not thinks:  # they would be part of the content
        yield "thoughts", {**text, "content": f"<think>\n{_THOUGHT}\n</think>\n\nb"}, question
    if thinks:
        yield "thoughts", {**text, "reasoning_content": _THOUGHT}, question
        yield "thoughts before tool calls", {**call, "reasoning_content": _THOUGHT}, result


def _sampled(chat: Chat, turn: Message, start: str) -> str:
    """The text of a turn as a policy would sample it behind `start`: as the template shows it in the last place."""
    shown = chat.render([*_BEFORE, turn], _TOOLS, add_generation_prompt=False).removeprefix(start)
    ends = [at for end in chat.end_texts if (at := shown.find(end)) >= 0]
    text = shown[: min(ends, default=len(shown))]
    if turn["content"] and turn["content"] not in text:
        return str(turn["content"])
    thought = turn.get("reasoning_content", "")
    if thought and thought not in text:  # a template that never shows thoughts: they were sampled nevertheless
        return f"{chat.reasoning.open}\n{thought}\n{chat.reasoning.close}\n\n{text}"
    return text
