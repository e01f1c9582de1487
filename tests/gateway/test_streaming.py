"""A stream shows exactly what the whole reply has as its content, and no half of a mark."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.chat.parsers.hermes import HermesParser
from agentrl_core.chat.reasoning import REASONING_FORMATS
from agentrl_core.chat.replies import ReplyFormat, parse_reply
from agentrl_core.gateway.streaming import TextStream


class Characters:
    """A decoder whose ids are characters."""

    def feed(self, ids):
        return "".join(ids)


def play(pieces, *, openers=(), stop=()):
    stream = TextStream(Characters(), openers=openers, stop=stop)
    return stream, [stream.feed(piece) for piece in pieces]


pieces = st.lists(
    st.sampled_from(["<tool_call>", "</tool_call>", "<tool", "_call>", '{"name": "f", "arguments": {}}', "EN", "END"])
    | st.text("<E N\nx", max_size=4),
    max_size=10,
)


@given(pieces)
def test_pieces_and_rest_are_the_content(texts):
    text = "".join(texts)
    cut = text.split("END")[0]
    content = parse_reply(cut, ReplyFormat(HermesParser(), REASONING_FORMATS["none"])).content
    stream, shown = play(texts, openers=HermesParser.openers, stop=("END",))
    assert "".join(shown) + stream.rest(content) == content


@given(pieces)
def test_no_beginning_of_a_mark_is_shown(texts):
    _, shown = play(texts, stop=("END", "<tool_call>"))
    text = "".join(texts)
    marks = [at for mark in ("END", "<tool_call>") if (at := text.find(mark)) >= 0]
    assert text.startswith("".join(shown))
    assert len("".join(shown)) <= min(marks, default=len(text))


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["a", " ", "b"], ["a", " ", "b"]),
        (["a ", "E", "x"], ["a ", "", "Ex"]),
        (["a EN", "D b", "c"], ["a ", "", ""]),
    ],
)
def test_text_is_shown_as_soon_as_it_is_certain(texts, expected):
    assert play(texts, stop=("END",))[1] == expected


def test_blanks_before_a_possible_call_wait():
    assert play(["a ", "\n", "b", "\n<"], openers=("<tool_call>",))[1] == ["a", "", " \nb", ""]
