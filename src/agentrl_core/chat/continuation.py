"""Find the text that a chat template puts between a sampled assistant turn and the next generation prompt.

A conversation continues from the exact token ids of its last turn, so only the new part is rendered. The template is
rendered with a unique sentinel in place of the assistant's content. The text after the sentinel is the end of that
turn, the new messages and the next generation prompt. This works for any template that prints an assistant's content.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from agentrl_core.errors import RequestError

if TYPE_CHECKING:
    from agentrl_core.chat.template import ChatTemplate
    from agentrl_core.types import Message

Tools = Sequence[Mapping[str, Any]]
Options = Mapping[str, Any] | None
"""Additional template variables, `enable_thinking` for example."""

_KEPT_OPTIONS = 64

# A history that consists of this message alone stands for any history, once the template is known not to look at it.
_STAND_IN: Message = {"role": "user", "content": "."}


def _tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


_SOME_TOOLS = (_tool("stand_in"),)


class TurnContinuation:
    """Computes the text from the end of an assistant's content to the next generation prompt, for one template."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._sentinel = f"turn-{uuid.uuid4().hex}"
        self.ends: tuple[str, ...] = ()
        """Texts of the tokens that may end an assistant's turn; set by `Chat` once it knows them."""
        self._history_free = {b"": self._is_history_free(None)}
        """Template options (as JSON) → whether the continuation is the same for every history."""

    def after_any_history(self, new: Sequence[Message], *, tools: bool, options: Options = None) -> str | None:
        """Return the text that follows an assistant's content before `new`, if it is the same for every history.

        Cheap, and safe to cache by `new`, whether there are tools, and `options`. None if this template looks at the
        history.
        """
        key = orjson.dumps(options) if options else b""
        free = self._history_free.get(key)
        if free is None:
            if len(self._history_free) >= _KEPT_OPTIONS:
                self._history_free.clear()
            free = self._history_free[key] = self._is_history_free(options)
        return self._after_sentinel((_STAND_IN,), new, _SOME_TOOLS if tools else (), options) if free else None

    def after(
        self, history: Sequence[Message], new: Sequence[Message], tools: Tools, options: Options = None
    ) -> str | None:
        """Return the text that follows the content of `history`'s last message when `new` is appended.

        None if the template cannot continue from the turn as it was sampled.
        """
        found = self._after_sentinel(history[:-1], new, tools, options)
        return self._difference(history, new, tools, options) if found is None else found

    def _after_sentinel(
        self, before: Sequence[Message], new: Sequence[Message], tools: Tools, options: Options
    ) -> str | None:
        turn = {"role": "assistant", "content": self._sentinel}
        try:
            text = self._template.render([*before, turn, *new], tools, options=options)
        except RequestError:  # for example, the template requires tool calls in the turn that holds the sentinel
            return None
        _, found, after = text.partition(self._sentinel)
        return after if found else None

    def _difference(
        self, history: Sequence[Message], new: Sequence[Message], tools: Tools, options: Options
    ) -> str | None:
        """Return the same text by comparing two full renders, for turns whose content the template does not print.

        The turn ends with its end-of-turn token and the whitespace after it, and the result begins with that token.
        """
        try:
            # Rendered without a generation prompt, `before` ends with the last turn, and `after` must begin with it.
            before = self._template.render(history, tools, add_generation_prompt=False, options=options)
            after = self._template.render([*history, *new], tools, options=options)
        except RequestError:
            return None
        end = next((end for end in self.ends if before.rstrip().endswith(end)), None)
        if end is None or not after.startswith(before):
            return None
        return after[before.rindex(end) :]

    def _is_history_free(self, options: Options) -> bool:
        """Test by examples whether the continuation depends on the history.

        Histories with and without a system message, tool calls and earlier turns must all lead to the same text.
        """
        call = {"id": "call_0", "type": "function", "function": {"name": "other", "arguments": "{}"}}
        histories: list[list[Message]] = [
            [{"role": "user", "content": "a"}],
            [{"role": "system", "content": "b"}, {"role": "user", "content": "c"}],
            [
                {"role": "user", "content": "d"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": "e", "tool_call_id": "call_0"},
            ],
            [{"role": "user", "content": "f"}, {"role": "assistant", "content": "g"}, {"role": "user", "content": "h"}],
        ]
        result: Message = {"role": "tool", "content": "i", "tool_call_id": "call_0"}
        question: Message = {"role": "user", "content": "j"}
        for new in (
            [question],
            [result],
            [result, result],
            [question, {"role": "assistant", "content": "k"}, question],
        ):
            for tools, others in ((), ()), (_SOME_TOOLS, (_tool("other"),)):
                expected = self._after_sentinel((_STAND_IN,), new, tools, options)
                found = [self._after_sentinel(history, new, others, options) for history in histories]
                # None: the template refuses this history, so no conversation with it gets as far as a continuation.
                if any(text not in {None, expected} for text in found):
                    return False
        return True

    def probe(self) -> str | None:
        """Return the text between an assistant's content and the next reply, with a user's message in between."""
        return self._after_sentinel((_STAND_IN,), (_STAND_IN,), (), None)
