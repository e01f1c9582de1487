"""Split a sampled reply, whole or streamed, into content, reasoning and complete tool calls.

Both modes run the same code: parsing proceeds in steps that wait for more text, and nothing that was given out is ever
taken back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.parsing.source import LongMarks, Marks, Source
from agentrl_core.api.tool_parsers import ParsedReply, call_id, make_call

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from agentrl_core.api.reasoning import ReasoningFormat
    from agentrl_core.api.tool_parsers import Steps, ToolParser, Tools
    from agentrl_core.chat.tokenizer import StreamDecoder

_NO_MARKS = Marks(())
_WAITS = "the tool-call parser waits for more text after the end of the reply; it must return once source.final is set"


@attrs.frozen(kw_only=True)
class Piece:
    """Part of a reply that became certain with the latest tokens."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[dict[str, Any], ...] = ()
    """Complete, well-formed calls in OpenAI's shape."""

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls)


class ReplyReader:
    """Reads one reply from its token ids; the concatenated pieces equal the reply that `end` returns."""

    def __init__(
        self,
        decoder: StreamDecoder,
        reading: Callable[[Source, Collector], Steps[None]],
        *,
        calls: bool,
        parallel: bool = True,
        stop: Sequence[str] = (),
        stop_token_ids: Iterable[int] = (),
        reply_id: str = "",
    ) -> None:
        self._decoder = decoder
        self._ends = frozenset(stop_token_ids)
        self._collector = Collector(calls=calls, parallel=parallel, reply_id=reply_id)
        self._source = Source()
        self._steps: Generator[None, None, None] | None = reading(self._source, self._collector)
        self._stop = _StopStrings(stop) if stop else None

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; text after it is not read."""
        return self._stop is not None and self._stop.found

    def feed(self, ids: Sequence[int]) -> Piece:
        """Read more ids and return the part of the reply that became certain with them."""
        self._read(self._decoder.feed(self._without_ends(ids)), final=False)
        return self._collector.take()

    def end(self, ids: Sequence[int] = ()) -> ParsedReply:
        """Read the last ids and return the whole reply."""
        self._read(self._decoder.end(self._without_ends(ids)), final=True)
        return self._collector.whole()

    def rest(self) -> Piece:
        """Return the part that `end` found beyond the pieces that `feed` returned."""
        return self._collector.take()

    def _without_ends(self, ids: Sequence[int]) -> Sequence[int]:
        return ids if self._ends.isdisjoint(ids) else [token for token in ids if token not in self._ends]

    def _read(self, text: str, *, final: bool) -> None:
        if self._steps is None or (not text and not final):
            return
        if self._stop is not None:
            text = self._stop.certain(text, final=final)
        self._source.text += text
        self._source.final = final or self.stopped
        try:
            next(self._steps)
        except StopIteration:
            # The parser has read everything; further tokens are ignored, for example after a stop string.
            self._steps = None
            self._collector.finish()
        else:
            if self._source.final:
                raise RuntimeError(_WAITS)


class Collector:
    """Collects the output of a parser. Whitespace around tool calls and after reasoning is not content.

    The ids of calls are derived from `reply_id`. With `calls=False`, calls become text.
    """

    def __init__(self, *, calls: bool, parallel: bool = True, reply_id: str = "") -> None:
        self._calls_wanted = calls
        self._parallel = parallel
        self._reply_id = reply_id
        self._content = _Text()
        self._reasoning = _Text()
        self._calls: list[dict[str, Any]] = []
        self._errors: list[str] = []
        self._calls_taken = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing but reasoning was found so far."""
        return not self._calls and self._content.is_empty

    def begin_text(self) -> None:
        """Begin a new paragraph of the content."""
        self._content.begin_paragraph()

    def text(self, text: str) -> None:
        """Add to the content."""
        self._content.add(text, hold=self._calls_wanted)

    def reasoning(self, text: str) -> None:
        """Add to the reasoning."""
        self._reasoning.add(text, hold=True)

    def begin_reasoning(self) -> None:
        """Begin a new paragraph of the reasoning."""
        self._reasoning.begin_paragraph()

    def end_reasoning(self) -> None:
        """End a reasoning block; the whitespace after it belongs neither to the reasoning nor to the content."""
        self._content.skip_blanks()

    def call(self, name: str, arguments: str) -> None:
        """Add a call; a call whose text is not valid UTF-8 counts as malformed, even if the parser accepted it."""
        try:
            (name + arguments).encode()
        except UnicodeEncodeError as error:
            shown = f"{name}: {arguments}".encode(errors="replace").decode()
            self.malformed(shown, f"tool call is not valid text: {error.reason}")
            return
        # Without tools, a call that a parser found anyway (gpt-oss) is shown as text.
        if not self._calls_wanted:
            self.text(f"{name}({arguments})")
            return
        if self._calls and not self._parallel:
            self.malformed(f"{name}({arguments})", f"tool call {name!r} is one too many: the request allows one")
            return
        self._content.drop_held()
        self._calls.append(make_call(name, arguments, call_id(self._reply_id, len(self._calls))))

    def malformed(self, text: str, error: str) -> None:
        """Record a call that cannot be read, and keep its text in the content."""
        self._errors.append(error)
        self.text(text)

    def report(self, error: str) -> None:
        """Record an error of a call whose text was already added to the content or the reasoning."""
        self._errors.append(error)

    def finish(self) -> None:
        """End the reply; without calls, trailing whitespace belongs to the content."""
        if not self._calls:
            self._content.give_held()

    def take(self) -> Piece:
        """Return everything that is new since the last call of `take`."""
        calls = tuple(self._calls[self._calls_taken :])
        self._calls_taken = len(self._calls)
        return Piece(content=self._content.take(), reasoning=self._reasoning.take(), tool_calls=calls)

    def whole(self) -> ParsedReply:
        """Return the whole reply."""
        return ParsedReply(
            content=self._content.whole(),
            reasoning=self._reasoning.whole(),
            tool_calls=tuple(self._calls),
            errors=tuple(self._errors),
        )


class _Text:
    """Growing text whose trailing whitespace may be held back.

    Whether that whitespace is content is only known later: it is dropped if a tool call follows.
    """

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._held: list[str] = []
        self._taken = 0
        self._skipping = False

    def add(self, text: str, *, hold: bool) -> None:
        if self._skipping:
            # Whitespace after reasoning or at the start of a paragraph may arrive in several pieces.
            text = text.lstrip()
            self._skipping = not text
        if hold:
            visible = text.rstrip()
            if not visible:
                if text:
                    self._held.append(text)
                return
            text, blanks = visible, text[len(visible) :]
            self.give_held()
            self._parts.append(text)
            if blanks:
                self._held.append(blanks)
        elif text:
            self.give_held()
            self._parts.append(text)

    @property
    def is_empty(self) -> bool:
        return not self._parts

    def skip_blanks(self) -> None:
        self._skipping = True

    def begin_paragraph(self) -> None:
        self._skipping = True
        self._held = ["\n\n"] if self._parts else []

    def give_held(self) -> None:
        self._parts += self._held
        self._held = []

    def drop_held(self) -> None:
        self._held = []

    def take(self) -> str:
        new = self._parts[self._taken :]
        self._taken = len(self._parts)
        return new[0] if len(new) == 1 else "".join(new)

    def whole(self) -> str:
        return "".join(self._parts)


class _StopStrings:
    """Passes text through up to the first stop string, and holds back text that may begin one."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._marks = LongMarks(stop)
        self._held = ""
        self.found = False

    def certain(self, text: str, *, final: bool) -> str:
        if self.found:
            return ""
        text = self._held + text
        mark, end = self._marks.search(text, 0, final=final)
        self.found = bool(mark)
        self._held = text[end:]
        return text[:end]


class ReplyFormat:
    """Format of a policy's replies: the tags of its reasoning and the parser of its tool calls."""

    def __init__(self, parser: ToolParser, reasoning: ReasoningFormat | None) -> None:
        self._parser = parser
        self._reasoning = reasoning
        openers, thought = parser.openers, (reasoning.open,) if reasoning else ()
        # Keyed by `calls`. Without tools, openers are plain text, unless they also begin ordinary messages (gpt-oss).
        self._marks = {
            True: Marks((*openers, *thought)),
            False: Marks((*(openers if parser.frames_text else ()), *thought)),
        }
        # Tool calls inside of a reasoning block are not calls. Openers are still searched there, to report calls in a
        # block that is never closed.
        self._in_thought = {
            True: Marks((*openers, reasoning.close)) if reasoning else Marks(()),
            False: Marks((reasoning.close,)) if reasoning else Marks(()),
        }

    def steps(self, source: Source, collector: Collector, *, tools: Tools, calls: bool, thinking: bool) -> Steps[None]:
        """Read a reply, yielding whenever more text is needed.

        `calls`: whether tool calls are parsed or stay text. `thinking`: whether the prompt already opened the reasoning
        block.
        """
        parser, reasoning = self._parser, self._reasoning
        starters = parser.starters if calls else ()
        if reasoning and thinking:
            yield from self._think(source, collector, reasoning, calls=calls)
        while True:
            if starters and collector.is_empty and (yield from _starts(source, collector, starters)):
                yield from parser.read(source, collector, tools)
            mark = yield from source.copy(self._marks[calls], collector.text)
            if not mark:
                return
            if reasoning and mark == reasoning.open:
                source.at += len(mark)
                if not reasoning.separate:
                    collector.text(mark)
                yield from self._think(source, collector, reasoning, calls=calls)
            else:
                yield from parser.read(source, collector, tools)

    def _think(self, source: Source, collector: Collector, reasoning: ReasoningFormat, *, calls: bool) -> Steps[None]:
        """Read the inside of a reasoning block and its closing tag."""
        emit = collector.reasoning if reasoning.separate else collector.text
        if reasoning.separate:
            collector.begin_reasoning()
        considered = ""
        while mark := (yield from source.copy(self._in_thought[calls], emit)):
            source.at += len(mark)
            if mark == reasoning.close:
                if reasoning.separate:
                    collector.end_reasoning()
                else:
                    collector.text(mark)
                return
            considered = mark
            emit(mark)
        if considered:
            collector.report(f"{considered} is in reasoning that is not closed by {reasoning.close}: not a tool call")


def read_text(source: Source, collector: Collector) -> Steps[None]:
    """Read an output that is plain text."""
    yield from source.copy(_NO_MARKS, collector.text)


def parse_reply(text: str, replies: ReplyFormat, *, tools: Tools = (), thinking: bool = False) -> ParsedReply:
    """Parse a complete text, tool calls included."""
    # A complete text never makes a parser wait, so the first yield is a bug in the parser.
    source, collector = Source(), Collector(calls=True)
    source.text, source.final = text, True
    for _ in replies.steps(source, collector, tools=tools, calls=True, thinking=thinking):
        raise RuntimeError(_WAITS)
    collector.finish()
    return collector.whole()


def _starts(source: Source, collector: Collector, starters: Sequence[str]) -> Steps[bool]:
    """Return whether a starter comes next; the whitespace before it is passed on as text."""
    at = yield from source.visible(source.at)
    for starter in starters:
        if (yield from source.starts(starter, at)):
            collector.text(source.text[source.at : at])
            source.at = at
            return True
    return False
