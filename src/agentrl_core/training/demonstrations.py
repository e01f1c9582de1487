"""Demonstrations as samples: the very ids that the policy will see and must sample.

A row that holds token ids is trained on these. Any other chat is rendered up to each assistant message, with the
generation prompt, as a gateway does; the reply follows up to and including the token that ends its turn. Every part is
tokenized by itself, because that is where sampling begins and ends; tokenizing the whole text could merge across those
places.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import jinja2

from agentrl_core.batching.samples import Sample
from agentrl_core.errors import DataError

if TYPE_CHECKING:
    from agentrl_core.data.demonstrations import Demonstration, TokenRow

TrainOn: TypeAlias = Literal["all", "last"]
Overlong: TypeAlias = Literal["error", "drop", "truncate"]

_SHOWN_PROBLEMS = 20
_REFUSALS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What a template raises on messages that it was not written for; a lone surrogate is a ValueError."""


class Demonstrations:
    """Chats and token rows, turned into samples when first used; the weight of a token is its `advantage`.

    `train_on`: which replies of a chat are trained; `exact_ids`: whether rows are trained on the ids that they hold.
    `overlong`: what becomes of rows longer than the context. `error` refuses them; `drop` makes `check` leave them out;
    `truncate` cuts them there, and makes `check` leave out those without a trained token before.
    Raises `DataError`, naming the row, for one longer than the context, with ids of another tokenizer, and where the
    template does not end a reply with a stop token.
    """

    def __init__(
        self,
        rows: Sequence[Demonstration],
        *,
        model_dir: Path,
        stop_token_ids: frozenset[int],
        context_length: int,
        train_on: TrainOn = "all",
        exact_ids: bool = True,
        overlong: Overlong = "error",
    ) -> None:
        from tokenizers import Tokenizer
        from transformers import AutoTokenizer

        self._rows = rows
        self._train_on, self._exact_ids, self._overlong = train_on, exact_ids, overlong
        self._context_length = context_length
        self._template: Any = AutoTokenizer.from_pretrained(model_dir, trust_remote_code=False)
        self._tokenizer: Any = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        self._digest = tokenizer_digest(model_dir)
        self._stops: list[str] = [
            self._tokenizer.decode([token], skip_special_tokens=False) for token in sorted(stop_token_ids)
        ]
        self._samples: dict[int, list[Sample]] = {}
        self._replies = itertools.count()
        self._kept = list(range(len(rows)))
        self._cut: set[int] = set()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def names(self) -> list[str]:
        """Where each row stands, by the `record` of its samples."""
        return [row.where for row in self._rows]

    @property
    def dropped(self) -> list[str]:
        """Where the rows stand that `check` left out."""
        return [self._rows[number].where for number in sorted(set(range(len(self._rows))).difference(self._kept))]

    @property
    def truncated(self) -> list[str]:
        """Where the rows stand that were cut and are trained."""
        return [self._rows[number].where for number in sorted(self._cut.intersection(self._kept))]

    def check(self) -> None:
        """Convert all rows now; `DataError` with a line for each that cannot be trained and may not be left out."""
        problems: list[DataError] = []
        kept = []
        for number in self._kept:
            try:
                self._converted(number)
            except DataError as error:
                if self._overlong == "error" or not isinstance(error, _OverlongError):
                    problems.append(error)
            else:
                kept.append(number)
        if problems:
            lines = [str(error) for error in problems[:_SHOWN_PROBLEMS]]
            if len(problems) > _SHOWN_PROBLEMS:
                lines.append(f"{len(problems) - _SHOWN_PROBLEMS} more problems")
            if any(isinstance(error, _OverlongError) for error in problems):
                lines.append("data.overlong: drop leaves out rows that are too long, truncate cuts them")
            raise DataError("\n".join(lines))
        self._kept = kept

    def samples(self, index: int) -> list[Sample]:
        """The samples of one row: a single one, unless the template rewrites earlier turns of its chat."""
        return self._converted(self._kept[index])

    def length(self, index: int) -> int:
        """Token ids of one row."""
        return sum(len(sample.ids) for sample in self.samples(index))

    def _converted(self, number: int) -> list[Sample]:
        """The samples of a row, by its place among all that were given."""
        if number not in self._samples:
            row = self._rows[number]
            exact = row.tokens if self._exact_ids else None
            drafts = self._rendered(row) if exact is None else [self._exact(row, exact)]
            self._samples[number] = self._fitting(row, drafts, number)
        return self._samples[number]

    def _exact(self, row: Demonstration, tokens: TokenRow) -> _Draft:
        """The row's own ids."""
        spans = tokens.spans[-1:] if self._train_on == "last" else tokens.spans
        if tokens.tokenizer and tokens.tokenizer != self._digest:
            raise DataError(
                f"{row.where}: its ids belong to another tokenizer ({tokens.tokenizer}) than the model's "
                f"({self._digest}); set data.exact_ids: false to train on its messages, rendered for this model"
            )
        if (largest := max(tokens.ids)) >= (size := self._tokenizer.get_vocab_size()):
            raise DataError(f"{row.where}: the id {largest} is none of the model's {size} tokens")
        draft = _Draft()
        for start, end, weight in spans:
            draft.ids.extend(tokens.ids[len(draft.ids) : start])
            draft.add_reply(tokens.ids[start:end], weight, next(self._replies))
        if not draft.positions:
            raise DataError(f"{row.where}: its last span has the weight 0, and data.train_on is last")
        return draft

    def _rendered(self, row: Demonstration) -> list[_Draft]:
        """The chat as this model reads it."""
        messages = [
            _for_template(message, f"{row.where}: messages.{place}") for place, message in enumerate(row.messages)
        ]
        if not messages:
            raise DataError(f"{row.where}: has token ids alone, which data.exact_ids: false leaves unused")
        replies = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
        trained = {place for place in (replies[-1:] if self._train_on == "last" else replies) if row.weights[place]}
        if not trained:
            raise DataError(f"{row.where}: no assistant message that is trained has a weight above 0")
        tools = row.tools
        drafts: list[_Draft] = []
        text = ""  # what the ids of the last draft stand for
        for place in (place for place in replies if place <= max(trained)):
            where = f"{row.where}: messages.{place}"
            prompt = self._render(messages[:place], tools, where, prompt=True)
            # Not taken from the longer prompt of the next reply: there a template may show it changed.
            whole = self._render(messages[: place + 1], tools, where)
            if not whole.startswith(prompt):
                raise DataError(
                    f"{where}: the chat template does not show a finished reply after its own generation prompt, so "
                    "the reply's tokens cannot be told"
                )
            if not (drafts and prompt.startswith(text)):
                drafts.append(_Draft())
                text = ""
            reply = self._reply(whole[len(prompt) :], where)
            drafts[-1].ids.extend(self._encode(prompt[len(text) :]))
            drafts[-1].add_reply(
                self._encode(reply), row.weights[place] if place in trained else 0.0, next(self._replies)
            )
            text = prompt + reply
        return [draft for draft in drafts if draft.positions]

    def _render(self, messages: Sequence[Mapping[str, Any]], tools: Any, where: str, *, prompt: bool = False) -> str:
        """The text of messages, `where` being the reply at their end or after them."""
        try:
            text: str = self._template.apply_chat_template(
                messages, tools=tools, add_generation_prompt=prompt, tokenize=False
            )
            text.encode()  # a tokenizer takes only what UTF-8 holds
        except _REFUSALS as error:
            what = "what stands before this reply" if prompt else "the chat up to this reply"
            raise DataError(f"{where}: the model's chat template refused {what}: {error}") from error
        return text

    def _reply(self, text: str, where: str) -> str:
        """The reply that `text` starts with, up to and including its first stop token."""
        ends = [found + len(stop) for stop in self._stops if (found := text.find(stop)) >= 0]
        if not ends:
            raise DataError(
                f"{where}: the chat template ends the reply with none of the model's stop tokens {self._stops}, so the "
                "policy would never learn to stop"
            )
        return text[: min(ends)]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _fitting(self, row: Demonstration, drafts: Sequence[_Draft], number: int) -> list[Sample]:
        """The drafts up to their last trained tokens, and to the end of the context where they may be cut there."""
        longest = max(draft.positions[-1] + 1 for draft in drafts)
        if longest > self._context_length:
            if self._overlong == "truncate":
                self._cut.add(number)
                for draft in drafts:
                    draft.cut(self._context_length)
            if self._overlong != "truncate" or not any(draft.positions for draft in drafts):
                raise _OverlongError(f"{row.where}: {longest} tokens, more than the model's {self._context_length}")
        return [draft.sample(number) for draft in drafts if draft.positions]


class _OverlongError(DataError):
    """A row has no place in the context."""


class _Draft:
    """A sample in the making."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.weights: list[float] = []
        self.replies: list[int] = []

    def add_reply(self, ids: Sequence[int], weight: float, number: int) -> None:
        """Append a reply, which is trained where its weight is above 0."""
        if weight:
            self.positions.extend(range(len(self.ids), len(self.ids) + len(ids)))
            self.weights.extend([weight] * len(ids))
            self.replies.extend([number] * len(ids))
        self.ids.extend(ids)

    def cut(self, length: int) -> None:
        """Train nothing from the id of this number on."""
        count = bisect.bisect_left(self.positions, length)
        for values in (self.positions, self.weights, self.replies):
            del values[count:]

    def sample(self, number: int) -> Sample:
        """What stands up to the last trained token."""
        count = len(self.positions)
        return Sample(
            ids=self.ids[: self.positions[-1] + 1],
            positions=self.positions,
            logprobs=[0.0] * count,
            temperatures=[1.0] * count,
            advantages=self.weights,
            versions=[0] * count,
            interactions=self.replies,
            sequences=[number] * count,
            record=number,
            group=number,
        )


def tokenizer_digest(model_dir: Path) -> str:
    """Return what tells a model directory's token ids from those of other tokenizers."""
    from tokenizers import Tokenizer

    vocabulary = Tokenizer.from_file(str(model_dir / "tokenizer.json")).get_vocab(with_added_tokens=True)
    text = json.dumps(sorted(vocabulary.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _for_template(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The message with tool-call arguments as objects, as templates expect them, not as OpenAI's JSON text.

    Raises `DataError` for one whose content is not text: the model would not see an image, but its address.
    """
    content = message.get("content")
    if isinstance(content, list):
        kinds = ", ".join(sorted({str(part.get("type")) for part in content} - {"text"}))
        raise DataError(f"{where}.content: found parts of the type {kinds}; demonstrations are trained on text alone")
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
