"""Demonstrations as samples: the very ids that the policy will see and must sample.

A chat is rendered up to each assistant message, with the generation prompt, as a gateway does; the reply follows
up to and including the token that ends its turn. Every part is tokenized by itself, because that is where
sampling begins and ends; tokenizing the whole text could merge across those places.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl_core.batching.samples import Sample
from agentrl_core.errors import DataError


class Demonstrations:
    """Chats `{"messages": […], "tools": […]}`, turned into samples when first used.

    Raises `DataError`, naming the row, for a chat without an assistant message, one longer than the context, and
    where the template does not end a reply with a stop token.
    """

    def __init__(
        self, rows: Sequence[Mapping[str, Any]], *, model_dir: Path, stop_token_ids: frozenset[int], context_length: int
    ) -> None:
        from tokenizers import Tokenizer
        from transformers import AutoTokenizer

        self._rows = rows
        self._context_length = context_length
        self._template: Any = AutoTokenizer.from_pretrained(model_dir)
        self._tokenizer: Any = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        self._stops: list[str] = [
            self._tokenizer.decode([token], skip_special_tokens=False) for token in sorted(stop_token_ids)
        ]
        self._samples: dict[int, list[Sample]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def samples(self, index: int) -> list[Sample]:
        """The samples of one chat: a single one, unless its template rewrites earlier turns."""
        if index not in self._samples:
            self._samples[index] = self._convert(index)
        return self._samples[index]

    def length(self, index: int) -> int:
        """Token ids of one chat."""
        return sum(len(sample.ids) for sample in self.samples(index))

    def _convert(self, index: int) -> list[Sample]:
        row = self._rows[index]
        messages = [
            _with_parsed_arguments(message, f"demonstration {index + 1}, message {place + 1}")
            for place, message in enumerate(row["messages"])
        ]
        replies = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
        if not replies:
            raise DataError(f"demonstration {index + 1}: no assistant message, so there is nothing to learn from it")
        tools = row.get("tools")
        drafts: list[tuple[list[int], list[int]]] = []  # (ids, positions of the loss tokens)
        text = ""  # what the ids of the last draft stand for
        for place in replies:
            prompt = self._render(messages[:place], tools, prompt=True)
            # Not taken from the longer prompt of the next reply: there a template may show it changed.
            whole = self._render(messages[: place + 1], tools)
            if not whole.startswith(prompt):
                raise DataError(
                    f"demonstration {index + 1}, message {place + 1}: the chat template does not show a finished "
                    "reply after its own generation prompt, so the reply's tokens cannot be told"
                )
            if not (drafts and prompt.startswith(text)):
                drafts.append(([], []))
                text = ""
            ids, positions = drafts[-1]
            reply = self._reply(whole[len(prompt) :], index, place)
            reply_ids = self._encode(reply)
            ids.extend(self._encode(prompt[len(text) :]))
            positions.extend(range(len(ids), len(ids) + len(reply_ids)))
            ids.extend(reply_ids)
            text = prompt + reply
        return [self._sample(ids, positions, index) for ids, positions in drafts]

    def _render(self, messages: Sequence[Mapping[str, Any]], tools: Any, *, prompt: bool = False) -> str:
        text: str = self._template.apply_chat_template(
            messages, tools=tools, add_generation_prompt=prompt, tokenize=False
        )
        return text

    def _reply(self, text: str, index: int, place: int) -> str:
        """The reply that `text` starts with, up to and including its first stop token."""
        ends = [found + len(stop) for stop in self._stops if (found := text.find(stop)) >= 0]
        if not ends:
            raise DataError(
                f"demonstration {index + 1}, message {place + 1}: the chat template ends the reply with none of the "
                f"model's stop tokens {self._stops}, so the policy would never learn to stop"
            )
        return text[: min(ends)]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _sample(self, ids: list[int], positions: list[int], index: int) -> Sample:
        if len(ids) > self._context_length:
            raise DataError(
                f"demonstration {index + 1}: {len(ids)} tokens, more than the model's {self._context_length}"
            )
        count = len(positions)
        return Sample(
            ids=ids,
            positions=positions,
            logprobs=[0.0] * count,
            temperatures=[1.0] * count,
            advantages=[1.0] * count,
            versions=[0] * count,
            interactions=[index] * count,
            sequences=[index] * count,
            record=index,
            group=index,
        )


def _with_parsed_arguments(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The message with tool-call arguments as objects, as templates expect them, not as OpenAI's JSON text."""
    try:
        calls = [_parsed(call) for call in message.get("tool_calls") or ()]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{where}: a tool call is not {{'function': {{'name': …, 'arguments': JSON or an object}}}}: {error!r}"
        ) from error
    return {**message, "tool_calls": calls} if calls else dict(message)


def _parsed(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    if not isinstance(function["arguments"], str):
        return dict(call)
    return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
