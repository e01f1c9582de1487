"""`Chat`: the entry point that the gateway uses for templates, tokenization and reply parsing of one policy."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import orjson

from agentrl_core.api.parsing.call_rules import literal
from agentrl_core.chat.continuation import TurnContinuation
from agentrl_core.chat.images import IMAGE
from agentrl_core.chat.prompt_cache import IdsCache
from agentrl_core.chat.recognition import recognise_parser, recognise_reasoning
from agentrl_core.chat.replies import ReplyFormat, ReplyReader, read_text
from agentrl_core.chat.reply_grammar import reply_grammar
from agentrl_core.chat.template import ChatTemplate
from agentrl_core.chat.template_check import probe
from agentrl_core.chat.tokenizer import StreamDecoder, TextTokenizer, read_tokenizer_files
from agentrl_core.errors import RequestError
from agentrl_core.plugins.manager import load_registry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.api.reasoning import ReasoningFormat
    from agentrl_core.api.tool_parsers import ToolParser
    from agentrl_core.chat.reply_grammar import Thought
    from agentrl_core.chat.template_check import TemplateCheck
    from agentrl_core.plugins.registry import Registry
    from agentrl_core.types import Grammar, Message

_END_OF_PROMPT = 16
"""Tokens at the end of a prompt that are searched for a reasoning tag; enough for a tag that is split into pieces."""
_CACHED_ENDS = 1024
_MOST_CACHED_BYTES = 64 * 2**20
"""Size of each of the two caches, of prompts and of continuations."""


class Chat:
    """Chat template, tokenizer, tool-call parser and reasoning format of one policy.

    Stateless except for caches; usable from several threads.
    """

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: TextTokenizer,
        *,
        parser: ToolParser,
        reasoning: ReasoningFormat,
        stop_token_ids: Sequence[int],
        directory: Path | None = None,
    ) -> None:
        self.directory = directory
        """Model directory that it was read from; None if it was built from parts."""
        self._template = template
        self._tokenizer = tokenizer
        self.parser = parser
        self.reasoning = reasoning
        self.replies = ReplyFormat(parser, reasoning)
        self._continuation = TurnContinuation(template)
        self.stop_token_ids = self._with_end_of_turn(stop_token_ids)
        """Ids that end a generation: those that the model directory names, and the template's end-of-turn token."""
        # After the line above, which adds the template's own end-of-turn token.
        self._continuation.ends = tuple(text for token in self.stop_token_ids if (text := self.decode([token])))
        self._end_ids = frozenset(self.stop_token_ids)
        self._thinking_ends: dict[tuple[int, ...], bool] = {}
        self._prompts: IdsCache[bytes] = IdsCache(most_bytes=_MOST_CACHED_BYTES)
        self._continuations: IdsCache[tuple[bytes, bool]] = IdsCache(most_bytes=_MOST_CACHED_BYTES)
        """Ids that follow a turn, by (new messages, whether there are tools, options) as JSON and whether the turn was
        ended."""

    @classmethod
    def from_directory(
        cls,
        path: Path | str,
        parser: ToolParser | None = None,
        reasoning: ReasoningFormat | None = None,
        *,
        registry: Registry | None = None,
    ) -> Self:
        """Read a Hugging Face model directory; `ConfigError` names the file that is missing or broken.

        Without `parser` and `reasoning`, the formats of tool calls and reasoning are recognised from the chat template:
        tool calls by the parsers in `registry`, or in that of the installed packages.
        """
        files = read_tokenizer_files(Path(path))
        if parser is None:
            parser = recognise_parser(files.template, registry or load_registry(), where=str(files.template_path))
        template = ChatTemplate(files.template, files.special_tokens, where=str(files.template_path))
        return cls(
            template,
            files.tokenizer,
            parser=parser,
            reasoning=reasoning or recognise_reasoning(files.template, files.tokenizer.is_added),
            stop_token_ids=files.stop_token_ids,
            directory=Path(path),
        )

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added tokens included."""
        return self._tokenizer.vocab_size

    @functools.cached_property
    def verdict(self) -> TemplateCheck:
        """Result of the template check, which tests what the template does with past turns; computed once."""
        return probe(self)

    @functools.cached_property
    def takes_images(self) -> bool:
        """Whether the template has placeholders for images."""
        text = {"type": "text", "text": "a"}
        try:
            with_image, without = (
                self.render([{"role": "user", "content": parts}]) for parts in ([text, dict(IMAGE)], [text])
            )
        except RequestError:
            return False
        # A template that knows text only prints the list of parts as Python writes it, with "'type'" in it.
        return with_image != without and "'type'" not in with_image

    @functools.cached_property
    def takes_tools(self) -> bool:
        """Whether the template puts a request's tools into the prompt.

        True also for a template that raises an error on tools, because it does not drop them silently.
        """
        name = "agentrl_probe_of_tools"
        tool = {"type": "function", "function": {"name": name, "description": name, "parameters": {"type": "object"}}}
        question: Message = {"role": "user", "content": "a"}
        # Two cases, with and without a system message, because a template may show tools in one of them only.
        cases: list[list[Message]] = [[question], [{"role": "system", "content": "b"}, question]]
        shown = [self._shows(name, messages, tool) for messages in cases]
        return True in shown or False not in shown

    def _shows(self, name: str, messages: Sequence[Message], tool: Mapping[str, Any]) -> bool | None:
        """Return whether a tool's name is in the prompt; None if the template refuses to render it."""
        try:
            return name in self.render(messages, [tool])
        except RequestError:
            return None

    @property
    def end_texts(self) -> tuple[str, ...]:
        """Texts of the tokens that may end an assistant's turn."""
        return self._continuation.ends

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt as text; `RequestError` if the template refuses the messages.

        `options` are additional template variables.
        """
        return self._template.render(messages, tools, add_generation_prompt=add_generation_prompt, options=options)

    def encode(self, text: str, *, most_tokens: int | None = None) -> list[int]:
        """Return the token ids [T] of `text`: special tokens in it are recognised, none is added.

        Raises `TooManyTokensError` if there are certainly more than `most_tokens`; a long text is then not tokenized to
        its end.
        """
        return self._tokenizer.encode(text, most_tokens=most_tokens)

    def encode_continuation(self, text: str, *, most_tokens: int | None = None) -> tuple[int, ...]:
        """Return the token ids [T] of text that follows other text; see `encode` for `most_tokens`."""
        return tuple(self._tokenizer.encode_continuation(text, most_tokens=most_tokens))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids`, special tokens included."""
        return self._tokenizer.decode(ids)

    def decode_plain(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without special tokens."""
        return self._tokenizer.decode_plain(ids)

    def decoder(self) -> StreamDecoder:
        """Return a decoder for ids that arrive one by one."""
        return self._tokenizer.decoder()

    def reader(
        self,
        *,
        parse_tools: bool,
        parallel: bool = True,
        tools: Sequence[Mapping[str, Any]] = (),
        stop: Sequence[str] = (),
        prompt_ids: Sequence[int] = (),
        reply_id: str = "",
    ) -> ReplyReader:
        """Return a reader for one reply to a prompt.

        `parse_tools`: whether tool calls are parsed or stay text. `parallel`: whether calls after the first are
        allowed. `tools` are those of the request. The reply ends before the first of the `stop` strings. `prompt_ids`
        show whether the prompt already opened the reasoning block. The ids of tool calls are derived from `reply_id`.
        """
        thinking = bool(prompt_ids) and self._opens_thought(tuple(prompt_ids[-_END_OF_PROMPT:]))
        steps = functools.partial(self.replies.steps, tools=tools, calls=parse_tools, thinking=thinking)
        return ReplyReader(
            self.decoder(),
            steps,
            calls=parse_tools,
            parallel=parallel,
            stop=stop,
            stop_token_ids=self._end_ids,
            reply_id=reply_id,
        )

    def grammar(
        self,
        answer: Grammar | None,
        tools: Sequence[Mapping[str, Any]],
        *,
        required: bool,
        parallel: bool,
        prompt_ids: Sequence[int],
    ) -> Grammar | None:
        """Return the grammar of a whole reply to a prompt, reasoning included; None if the reply is unconstrained.

        `answer` constrains the text. `tools` may be called; with `required` at least one must be, with `parallel`
        several may be. Raises `RequestError` (400) if a grammar cannot express this in the model's format.
        """
        return reply_grammar(
            answer,
            tools,
            required=required,
            parallel=parallel,
            parser=self.parser,
            reasoning=self.reasoning,
            thought=self._thought(tuple(prompt_ids[-_END_OF_PROMPT:])),
            mark=self._mark,
        )

    def text_reader(self, *, stop: Sequence[str] = ()) -> ReplyReader:
        """Return a reader for an output that is plain text, without tool calls or reasoning."""
        return ReplyReader(self.decoder(), read_text, calls=False, stop=stop, stop_token_ids=self._end_ids)

    def _thought(self, end: tuple[int, ...]) -> Thought:
        if self._opens_thought(end):
            return "begun"
        return "over" if self.decode(end).rstrip().endswith(self.reasoning.close) else "possible"

    def _mark(self, text: str) -> str:
        """Write a string of the model's format for a grammar: a special token as `<[id]>`, other text in quotes."""
        token = self._tokenizer.id_of(text) if self._tokenizer.is_added(text) else None
        return literal(text) if token is None else f"<[{token}]>"

    def _opens_thought(self, end: tuple[int, ...]) -> bool:
        """Return whether a prompt with these last ids ends with an opened reasoning block."""
        known = self._thinking_ends.get(end)
        if known is None:
            known = self.decode(end).rstrip().endswith(self.reasoning.open)
            if len(self._thinking_ends) >= _CACHED_ENDS:
                self._thinking_ends.clear()
            self._thinking_ends[end] = known
        return known

    def reply_text(self, ids: Sequence[int]) -> str:
        """Return the text of a sampled turn, without the token that ended it."""
        return self.decode(ids[:-1] if ids and ids[-1] in self.stop_token_ids else ids)

    def prompt_ids(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
        *,
        most_tokens: int | None = None,
    ) -> tuple[int, ...]:
        """Render a whole conversation and return its token ids [T]; see `encode` for `most_tokens`."""
        key = orjson.dumps([messages, tools, options or None])
        ids = self._prompts.get(key)
        if ids is None:
            ids = tuple(self.encode(self.render(messages, tools, options=options), most_tokens=most_tokens))
            self._prompts.put(key, ids, key_bytes=len(key))
        return ids

    def continuation_ids(
        self,
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        last_id: int,
        options: Mapping[str, Any] | None = None,
        *,
        most_tokens: int | None = None,
    ) -> tuple[int, ...] | None:
        """Return the token ids [T] that follow a sampled turn when the messages `new` are appended.

        `history` ends with the sampled turn and `last_id` is its last token. An end-of-turn token that was sampled is
        not repeated; a missing one (the turn was cut off by its length limit) is inserted. None if the template cannot
        continue from the sampled ids. See `encode` for `most_tokens`.
        """
        ended = last_id in self.stop_token_ids
        key = (orjson.dumps([new, bool(tools), options or None]), ended)
        ids = self._continuations.get(key)
        if ids is not None:
            return ids
        # Only continuations that do not depend on the history are cached: the key does not contain it.
        text = self._continuation.after_any_history(new, tools=bool(tools), options=options)
        if text is not None:
            ids = self._encode_after(text, ended=ended, most_tokens=most_tokens)
            self._continuations.put(key, ids, key_bytes=len(key[0]))
            return ids
        text = self._continuation.after(history, new, tools, options)
        return None if text is None else self._encode_after(text, ended=ended, most_tokens=most_tokens)

    def continuation_text(
        self, history: Sequence[Message], new: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> str | None:
        """Return the text that follows the content of `history`'s last turn; None if the template cannot continue."""
        return self._continuation.after(history, new, tools)

    def _encode_after(self, text: str, *, ended: bool, most_tokens: int | None) -> tuple[int, ...]:
        # A sampled end-of-turn token is already in the ids. Whitespace that the template prints before it goes with it.
        stripped = text.lstrip()
        stop = next((stop for stop in self._continuation.ends if ended and stripped.startswith(stop)), None)
        return self.encode_continuation(text if stop is None else stripped.removeprefix(stop), most_tokens=most_tokens)

    def _with_end_of_turn(self, stop_token_ids: Sequence[int]) -> tuple[int, ...]:
        """Add the special token with which the template ends a turn; model directories often do not name it."""
        after = (self._continuation.probe() or "").lstrip()
        first = self.encode(after)[:1]
        token = self._tokenizer.added_token(first[0]) if first else None
        if token is None:
            return tuple(stop_token_ids)
        self._tokenizer.anchor_on(token)
        return tuple(dict.fromkeys([*stop_token_ids, first[0]]))
