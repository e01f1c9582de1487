"""`discard_all` and `summarise`: put a summary in the place of older turns, by the policy itself or another model.

The summary is added to the end of the task's message, between two marks, so that every chat template can render it; a
later summary takes the place of an earlier one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import field, frozen, validators

from agentrl_context.limits import Limited
from agentrl_context.turns import Turns, text_of, with_text
from agentrl_core.errors import ContextLengthError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_core.api.compaction import AskPolicy, ContextUsage
    from agentrl_core.types import Message

OPENING = "<summary_of_earlier_turns>"
CLOSING = "</summary_of_earlier_turns>"

INSTRUCTION = (
    "The conversation is about to be cut: after this reply you will see only the task and your summary. Summarise what "
    "was done, what was found, with all facts, names and numbers that are still needed, and what remains to be done. "
    "Write only the summary."
)
_MOST_TRIES = 8
"""Most attempts to cut a history so that it fits with the request for a summary; each cuts at least a tenth."""
_CUT = " […]"


@frozen(kw_only=True)
class _Summarising(Limited):
    """Base of both policies."""

    keep: int = field(default=0, validator=validators.ge(0))
    """Number of the newest turns that stay as they are, beside the summary of the others."""
    summary: str = field(default="policy", validator=validators.min_len(1))
    """Author of the summary: `policy`, whose summary is trained with the record, `none`, or the name of a model of
    `gateway.upstreams`."""
    instruction: str = field(default=INSTRUCTION, validator=validators.min_len(1))
    """Request for the summary."""
    max_summary_tokens: int = field(default=512, validator=validators.ge(1))
    """Longest summary."""

    @property
    def upstreams(self) -> tuple[str, ...]:
        """Names of the upstreams that are asked."""
        return () if self.summary in ("policy", "none") else (self.summary,)

    async def compact(self, messages: Sequence[Message], usage: ContextUsage, ask: AskPolicy) -> list[Message] | None:
        """Return task, summary and newest turns, if the prompt is above the limit and has more turns than these."""
        if not self.is_full(usage):
            return None
        found = Turns.of(messages)
        if len(found.turns) <= self.keep:
            return None
        head = _without_summary(found.head)
        if self.summary != "none":
            head = _with_summary(head, await self._summary(messages, usage, ask))
        return [*head, *found.newest(self.keep)]

    async def _summary(self, messages: Sequence[Message], usage: ContextUsage, ask: AskPolicy) -> str:
        if self.upstreams:
            question: Message = {"role": "user", "content": f"{_transcript(messages)}\n\n{self.instruction}"}
            answer = await ask([question], max_tokens=self.max_summary_tokens, upstream=self.summary)
            return text_of(answer).strip()
        room = usage.context_length - self.max_summary_tokens
        share = room / max(usage.prompt_tokens, 1)
        history = messages if share > 1 else _cut(messages, share)
        for _ in range(_MOST_TRIES):
            try:
                answer = await ask(_with_request(history, self.instruction), max_tokens=self.max_summary_tokens)
            except ContextLengthError as error:
                # `prompt_tokens` may be a lower bound, so a further cut may follow.
                history = _cut(history, min(room / error.prompt_tokens, 0.9))
            else:
                return text_of(answer).strip()
        answer = await ask(
            _with_request(_without_turns(messages), self.instruction), max_tokens=self.max_summary_tokens
        )
        return text_of(answer).strip()


@frozen(kw_only=True)
class DiscardAll(_Summarising):
    """Context policy that starts again from the task, with a summary of all turns so far."""


@frozen(kw_only=True)
class Summarise(_Summarising):
    """Context policy that replaces older turns by a summary and keeps the newest."""

    keep: int = field(default=2, validator=validators.ge(0))
    """Number of the newest turns that stay as they are, beside the summary of the others."""


def _with_request(messages: Sequence[Message], instruction: str) -> list[Message]:
    """Return the conversation with a request at its end; templates may refuse two user messages in a row."""
    last = messages[-1]
    if last["role"] == "user":
        return [*messages[:-1], with_text(last, instruction)]
    return [*messages, {"role": "user", "content": instruction}]


def _with_summary(head: Sequence[Message], summary: str) -> list[Message]:
    text = f"{OPENING}\n{summary or '(empty)'}\n{CLOSING}"
    if head and head[-1]["role"] == "user":
        return [*head[:-1], with_text(head[-1], text)]
    return [*head, {"role": "user", "content": text}]


def _without_summary(head: Sequence[Message]) -> list[Message]:
    """Return the head without the summary of an earlier compaction, which ends its last message."""
    if not head or not text_of(head[-1]).endswith(f"\n{CLOSING}"):
        return list(head)
    last, content = head[-1], head[-1]["content"]
    if isinstance(content, str):
        before = content[: max(content.rfind(OPENING), 0)].removesuffix("\n\n")
        return [*head[:-1], {**last, "content": before}] if before else list(head[:-1])
    return [*head[:-1], {**last, "content": content[:-1]}]


def _without_turns(messages: Sequence[Message]) -> list[Message]:
    return list(Turns.of(messages).head) or list(messages[:1])


def _cut(messages: Sequence[Message], share: float) -> list[Message]:
    """Shorten the longest texts of the turns, so that about `share` of the conversation's characters is left."""
    found = Turns.of(messages)
    fixed = sum(len(text_of(message)) for message in found.head)
    lengths = [len(text_of(message)) for turn in found.turns for message in turn]
    longest = _level(lengths, max(share * (fixed + sum(lengths)) - fixed, 0))
    return [*found.head, *(_shortened(message, longest) for turn in found.turns for message in turn)]


def _level(lengths: Sequence[int], total: float) -> int:
    """Return the largest length to which all can be cut so that they have at most `total` together."""
    left = sorted(lengths)
    for index, length in enumerate(left):
        each = total / (len(left) - index)
        if length > each:
            return int(each)
        total -= length
    return max(left, default=0)


def _shortened(message: Message, longest: int) -> Message:
    text = text_of(message)
    if len(text) <= longest:
        return message
    return {**message, "content": text[: max(longest - len(_CUT), 0)] + _CUT}


def _transcript(messages: Sequence[Message]) -> str:
    """Return a conversation as one text, for a model that knows neither the tools nor their calls."""
    lines = []
    for message in messages:
        if text := text_of(message):
            lines.append(f"[{message['role']}]\n{text}")
        calls = (call["function"] for call in message.get("tool_calls") or ())
        lines += [f"[{message['role']} calls {call['name']}]\n{call['arguments']}" for call in calls]
    return "\n\n".join(lines)
