"""Conformance tests of tool-call parsers: `ToolParserSuite` for pytest, `check_tool_parser` for scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pytest

from agentrl_core.api.reasoning import REASONING_FORMATS
from agentrl_core.chat.replies import ReplyFormat, ReplyReader, parse_reply
from agentrl_testing.base import ConformanceSuite

if TYPE_CHECKING:
    from agentrl_core.api.tool_parsers import ParsedReply, ToolParser
    from agentrl_core.chat.tokenizer import StreamDecoder

Example: TypeAlias = "tuple[str, str, Sequence[tuple[str, Mapping[str, Any]]]]"
"""Text of a reply, its content without the tool calls, and name and arguments of each tool call."""

_TEXTS = ("", "Just words.", "  \n\t", "{", '{"name": "f"}', "<", "\ud83c[1, 2", "é 晴 \u2028", "a" * 2000)
"""Replies of a policy without a tool call, or with text that only resembles one."""


class ToolParserSuite(ConformanceSuite):
    """Conformance tests of tool-call parsers; define the fixtures `parser` and `examples` (a list of `Example`)."""

    @pytest.fixture
    def parser(self) -> ToolParser:
        """Return the parser under test."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `parser`")

    @pytest.fixture
    def examples(self) -> Sequence[Example]:
        """Return replies with their content and tool calls."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `examples`")

    def test_every_example_is_read_as_it_says(self, parser: ToolParser, examples: Sequence[Example]) -> None:
        """Whole replies give the expected content and tool calls."""
        assert examples, "give at least one example"
        _check_examples(parser, examples)

    def test_a_streamed_reply_is_read_as_a_whole_one(self, parser: ToolParser, examples: Sequence[Example]) -> None:
        """Read character by character, the reply is the same, and no content that was sent is taken back."""
        _check_streams(parser, [text for text, *_ in examples])

    def test_a_cut_reply_is_read_without_an_error(self, parser: ToolParser, examples: Sequence[Example]) -> None:
        """A generation may end at any place; a tool call that is cut off is reported as an error."""
        _check_cuts(parser, examples)

    def test_other_text_stays_what_it_is(self, parser: ToolParser) -> None:
        """No text makes the parser raise, and no text is lost."""
        _check_other_texts(parser)


def check_tool_parser(parser: ToolParser, examples: Sequence[Example] = ()) -> None:
    """Raise AssertionError, or the parser's own exception, if it breaks its contract; print nothing."""
    _check_examples(parser, examples)
    _check_streams(parser, [*(text for text, *_ in examples), *_TEXTS])
    _check_cuts(parser, examples)
    _check_other_texts(parser)


def _check_examples(parser: ToolParser, examples: Sequence[Example]) -> None:
    for text, content, calls in examples:
        reply = _whole(parser, text)
        assert (reply.content, _calls(reply)) == (content, [(name, dict(given)) for name, given in calls]), (
            f"{text!r}: expected the content {content!r} and the calls {calls}, "
            f"found {reply.content!r} and {_calls(reply)}"
        )
        assert not reply.errors, f"{text!r}: {reply.errors}"


def _check_streams(parser: ToolParser, texts: Sequence[str]) -> None:
    for text in texts:
        whole = _whole(parser, text)
        streamed, pieces = _streamed(parser, text)
        assert (streamed.content, _calls(streamed), len(streamed.errors)) == (
            whole.content,
            _calls(whole),
            len(whole.errors),
        ), text
        assert pieces == whole.content, f"{text!r}: streamed the content {pieces!r}, expected {whole.content!r}"


def _check_cuts(parser: ToolParser, examples: Sequence[Example]) -> None:
    for text, _, calls in examples:
        for end in range(len(text)):
            reply = _whole(parser, text[:end])
            # If openers begin ordinary messages too, a cut header need not be that of a call.
            begun = not parser.frames_text and any(opener in text[:end] for opener in parser.openers)
            told = len(reply.tool_calls) + len(reply.errors)
            assert told or not begun, f"{text[:end]!r} begins a tool call, but the parser reports no call and no error"
            assert len(reply.tool_calls) <= len(calls), f"{text[:end]!r}: {_calls(reply)}"


def _check_other_texts(parser: ToolParser) -> None:
    for text in _TEXTS:
        reply = _whole(parser, text)
        kept = reply.content + "".join(call["function"]["arguments"] for call in reply.tool_calls)
        assert kept.strip() == text.strip() or reply.tool_calls or reply.errors, f"{text!r} became {reply.content!r}"


def _calls(reply: ParsedReply) -> list[tuple[str, Any]]:
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in reply.tool_calls]


def _whole(parser: ToolParser, text: str) -> ParsedReply:
    return parse_reply(text, ReplyFormat(parser, REASONING_FORMATS["none"]))


def _streamed(parser: ToolParser, text: str) -> tuple[ParsedReply, str]:
    """Return the reply of a stream, and the content that was sent while it was read."""
    replies = ReplyFormat(parser, REASONING_FORMATS["none"])
    reader = ReplyReader(
        cast("StreamDecoder", _Characters()),
        lambda source, collector: replies.steps(source, collector, tools=(), calls=True, thinking=False),
        calls=True,
    )
    pieces = [reader.feed([ord(character)]).content for character in text]
    whole = reader.end()
    return whole, "".join([*pieces, reader.rest().content])


class _Characters:
    """A stream decoder in which every character is a token."""

    def feed(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def end(self, ids: Sequence[int] = ()) -> str:
        return self.feed(ids)
