"""Convert demonstrations into training samples with exactly the token ids that the policy sees and samples.

A row with token ids is trained on those ids. Any other chat is rendered up to each assistant message, with the
generation prompt, as the gateway does; the reply follows, up to and including the stop token of its turn. Prompt and
reply are tokenized separately, because sampling starts and ends there. Tokenizing the whole text at once could merge
tokens across these borders.
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
"""Exceptions that a template raises on messages that it does not support; a lone surrogate is a ValueError."""


class Demonstrations:
    """Demonstrations of one data set, converted into samples on first use; a token's weight is its `advantage`.

    `train_on`: replies of a chat to train. `exact_ids`: train rows on the token ids that they contain, if any.
    `overlong`: treatment of rows longer than the model's context. `error` refuses them, `drop` makes `check` leave them
    out, `truncate` cuts them and makes `check` leave out rows with no trained token before the cut.

    Converting a row raises `DataError` with its place if it is too long, has ids of another tokenizer, or if the
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
        """Place (`file:line`) of each row, indexed by the `record` of its samples."""
        return [row.where for row in self._rows]

    @property
    def dropped(self) -> list[str]:
        """Places (`file:line`) of the rows that `check` left out."""
        return [self._rows[number].where for number in sorted(set(range(len(self._rows))).difference(self._kept))]

    @property
    def truncated(self) -> list[str]:
        """Places (`file:line`) of the rows that were cut and are trained."""
        return [self._rows[number].where for number in sorted(self._cut.intersection(self._kept))]

    def check(self) -> None:
        """Convert all rows now. Raise `DataError` with one line for each row that must not be left out and fails."""
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
        """Return the samples of one row: a single one, unless the template rewrites earlier turns of its chat."""
        return self._converted(self._kept[index])

    def length(self, index: int) -> int:
        """Return the number of token ids of one row."""
        return sum(len(sample.ids) for sample in self.samples(index))

    def _converted(self, number: int) -> list[Sample]:
        """Return the samples of a row by its index among all rows, including those that `check` left out."""
        if number not in self._samples:
            row = self._rows[number]
            exact = row.tokens if self._exact_ids else None
            drafts = self._rendered(row) if exact is None else [self._exact(row, exact)]
            self._samples[number] = self._fitting(row, drafts, number)
        return self._samples[number]

    def _exact(self, row: Demonstration, tokens: TokenRow) -> _Draft:
        """Return the row's own token ids as a draft; raise `DataError` if they do not fit this model."""
        spans = tokens.spans[-1:] if self._train_on == "last" else tokens.spans
        if tokens.tokenizer and tokens.tokenizer != self._digest:
            raise DataError(
                f"{row.where}: its token ids belong to another tokenizer ({tokens.tokenizer}) than the model's "
                f"({self._digest}); set data.exact_ids: false to train on its messages, rendered for this model"
            )
        if (largest := max(tokens.ids)) >= (size := self._tokenizer.get_vocab_size()):
            raise DataError(f"{row.where}: the id {largest} is outside the model's vocabulary of {size} tokens")
        draft = _Draft()
        for start, end, weight in spans:
            draft.ids.extend(tokens.ids[len(draft.ids) : start])
            draft.add_reply(tokens.ids[start:end], weight, next(self._replies))
        if not draft.positions:
            raise DataError(
                f"{row.where}: its last span has the weight 0, so data.train_on: last leaves nothing to train"
            )
        return draft

    def _rendered(self, row: Demonstration) -> list[_Draft]:
        """Render the chat with the model's template and tokenize it; one draft per distinct history.

        Raises `DataError` if the template refuses it or its replies cannot be located.
        """
        messages = [
            _for_template(message, f"{row.where}: messages.{place}") for place, message in enumerate(row.messages)
        ]
        if not messages:
            raise DataError(f"{row.where}: has token ids alone, no messages; data.exact_ids: false needs messages")
        replies = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
        trained = {place for place in (replies[-1:] if self._train_on == "last" else replies) if row.weights[place]}
        if not trained:
            raise DataError(f"{row.where}: no assistant message that is trained has a weight above 0")
        tools = row.tools
        drafts: list[_Draft] = []
        # Rendered text of the last draft's ids.
        text = ""
        for place in (place for place in replies if place <= max(trained)):
            where = f"{row.where}: messages.{place}"
            prompt = self._render(messages[:place], tools, where, prompt=True)
            # The reply is not read from the next reply's longer prompt: there a template may show it changed.
            whole = self._render(messages[: place + 1], tools, where)
            if not whole.startswith(prompt):
                raise DataError(
                    f"{where}: the chat template does not show a finished reply after its own generation prompt, so "
                    "the reply's tokens cannot be located; train on rows with token ids, or use another template"
                )
            # A prompt that does not continue the text so far means that the template rewrote earlier turns. The policy
            # sees that rewritten history, so it starts a new sample.
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
        """Render messages as text. `where`: place of the reply at their end, or after them, for messages."""
        try:
            text: str = self._template.apply_chat_template(
                messages, tools=tools, add_generation_prompt=prompt, tokenize=False
            )
            # Tokenizers accept only valid UTF-8, so a lone surrogate must fail here.
            text.encode()
        except _REFUSALS as error:
            what = "the messages before this reply" if prompt else "the chat up to this reply"
            raise DataError(f"{where}: the model's chat template refused {what}: {error}") from error
        return text

    def _reply(self, text: str, where: str) -> str:
        """Return the reply at the start of `text`, up to and including its first stop token."""
        ends = [found + len(stop) for stop in self._stops if (found := text.find(stop)) >= 0]
        if not ends:
            raise DataError(
                f"{where}: the chat template does not end the reply with one of the model's stop tokens {self._stops}, "
                "so the policy would never learn to stop; correct the template or the model's eos_token_id"
            )
        return text[: min(ends)]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _fitting(self, row: Demonstration, drafts: Sequence[_Draft], number: int) -> list[Sample]:
        """Return the drafts' samples, cut at the end of the context if `overlong` is `truncate`.

        Raises `_OverlongError` if a draft is too long, or nothing trained is left of the row.
        """
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
    """A row is longer than the model's context, or has no trained token within it."""


class _Draft:
    """Growing lists of one sample's token ids and loss tokens."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.weights: list[float] = []
        self.replies: list[int] = []

    def add_reply(self, ids: Sequence[int], weight: float, number: int) -> None:
        """Append a reply; it is trained if its weight is above 0. `number` tells the replies of all rows apart."""
        if weight:
            self.positions.extend(range(len(self.ids), len(self.ids) + len(ids)))
            self.weights.extend([weight] * len(ids))
            self.replies.extend([number] * len(ids))
        self.ids.extend(ids)

    def cut(self, length: int) -> None:
        """Train no token at position `length` or later."""
        count = bisect.bisect_left(self.positions, length)
        for values in (self.positions, self.weights, self.replies):
            del values[count:]

    def sample(self, number: int) -> Sample:
        """Return the sample up to the last trained token; `number` is the index of its row."""
        count = len(self.positions)
        # Nothing was sampled: behaviour logprobs, versions and the temperature are placeholders.
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
    """Return a digest of a model directory's vocabulary: 16 hexadecimal digits that differ between tokenizers."""
    from tokenizers import Tokenizer

    vocabulary = Tokenizer.from_file(str(model_dir / "tokenizer.json")).get_vocab(with_added_tokens=True)
    text = json.dumps(sorted(vocabulary.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _for_template(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the message with tool-call arguments as objects, as templates expect them, instead of OpenAI's JSON text.

    Raises `DataError` if its content is not text: the model would see an image's address instead of the image.
    """
    content = message.get("content")
    if isinstance(content, list):
        kinds = ", ".join(sorted({str(part.get("type")) for part in content} - {"text"}))
        raise DataError(f"{where}.content: found parts of the type {kinds}; demonstrations may contain text only")
    try:
        calls = [_parsed(call) for call in message.get("tool_calls") or ()]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{where}: expected each tool call as {{'function': {{'name': …, 'arguments': JSON or an object}}}}, "
            f"found {error!r}"
        ) from error
    return {**message, "tool_calls": calls} if calls else dict(message)


def _parsed(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    if not isinstance(function["arguments"], str):
        return dict(call)
    return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}
