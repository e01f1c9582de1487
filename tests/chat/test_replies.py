"""Replies are read from ids: thoughts apart, stop strings and ends of turns cut off, calls when they are complete."""

import json

import pytest

from agentrl_core.api.reasoning import REASONING_FORMATS, THINK
from agentrl_core.chat import Chat, Piece
from agentrl_core.chat.parsers.hermes import HermesParser
from agentrl_core.chat.recognition import recognise_reasoning

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def read(chat, text, **options):
    return chat.reader(**{"parse_tools": True, **options}).end(chat.encode(text))


def pieces(chat, text, **options):
    reader = chat.reader(**{"parse_tools": True, **options})
    return [piece for token in chat.encode(text) if (piece := reader.feed([token]))]


def test_a_reply_ends_before_its_end_of_turn(chat):
    assert read(chat, "hi é<|im_end|>").content == "hi é"
    assert read(chat, "hi é").content == "hi é"


def test_a_thought_is_reasoning_and_not_content(chat):
    reply = read(chat, f"<think>\nhm, {CALL}?\n</think>\n\nYes.\n{CALL}<|im_end|>")
    assert (reply.reasoning, reply.content, len(reply.tool_calls)) == (f"hm, {CALL}?", "Yes.", 1)
    assert reply.errors == ()


def test_a_thought_that_the_prompt_began_needs_no_opening_tag(chat):
    began = chat.encode("<|im_start|>assistant\n<think>\n")
    reply = read(chat, f"hm {CALL}\n</think>\n\nYes.", prompt_ids=began)
    assert (reply.reasoning, reply.content, reply.tool_calls) == (f"hm {CALL}", "Yes.", ())
    ended = chat.encode("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert read(chat, "Yes.", prompt_ids=ended).content == "Yes."


def test_a_thought_without_an_end_is_all_reasoning(chat):
    reply = read(chat, "<think>\nhm")
    assert (reply.reasoning, reply.content, reply.errors) == ("hm", "", ())


def test_a_call_in_a_thought_without_an_end_is_reported(chat):
    reply = read(chat, f"<think>\nhm {CALL}")
    assert (reply.tool_calls, len(reply.errors)) == ((), 1)
    assert CALL in reply.reasoning


def test_several_thoughts_are_paragraphs(chat):
    reply = read(chat, f"<think>a</think>\n{CALL}\n<think>b\n</think>\n")
    assert (reply.reasoning, reply.content, len(reply.tool_calls)) == ("a\n\nb", "", 1)


def test_thoughts_stay_in_the_content_if_wanted(tmp_path, make_chat):
    make_chat()
    chat = Chat.from_directory(tmp_path, reasoning=REASONING_FORMATS["none"])
    text = f"<think>\nhm {CALL}\n</think>\n\nYes."
    assert read(chat, text).content == text
    assert read(chat, text).tool_calls == ()


def test_without_tools_a_call_is_text(chat):
    assert read(chat, f"{CALL} \n", parse_tools=False).content == f"{CALL} \n"


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [("a END b", "a ", ""), ("<think>a END b</think>c", "", "a"), ("a EN", "a EN", ""), ("aEND", "a", "")],
)
def test_a_reply_ends_before_the_first_stop_string(chat, text, content, reasoning):
    reply = read(chat, text, stop=("END",), parse_tools=False)
    assert (reply.content, reply.reasoning) == (content, reasoning)
    shown = pieces(chat, text, stop=("END",), parse_tools=False)
    assert content.startswith("".join(piece.content for piece in shown))


def test_the_earliest_stop_string_counts_however_long(chat):
    assert read(chat, "xabcdy", stop=("bc", "abcd")).content == "x"
    assert read(chat, "xabcey", stop=("bc", "abcd")).content == "xa"


def test_nothing_is_read_behind_a_stop_string(chat):
    reader = chat.reader(parse_tools=False, stop=("END",))
    reader.feed(chat.encode("a END"))
    assert reader.stopped
    assert reader.feed(chat.encode("b")) == Piece()
    assert reader.end().content == "a "


def test_pieces_come_as_soon_as_they_are_certain(chat):
    shown = pieces(chat, f"hi <x> \n{CALL} ok")
    assert "".join(piece.content for piece in shown) == "hi <x> ok"
    calls = [index for index, piece in enumerate(shown) if piece.tool_calls]
    assert len(calls) == 1
    assert [piece.content for piece in shown[: calls[0]]][-1] == "<x>"[-1:]
    assert "".join(piece.content for piece in shown[calls[0] :]) == " ok"


def test_a_streamed_call_has_the_id_of_the_whole_reply(chat):
    reader = chat.reader(parse_tools=True)
    streamed = [call for token in chat.encode(CALL * 2) for call in reader.feed([token]).tool_calls]
    assert tuple(streamed) == reader.end().tool_calls
    assert len({call["id"] for call in streamed}) == 2
    assert reader.rest() == Piece()


def test_a_call_is_given_out_with_its_last_token(chat):
    reader = chat.reader(parse_tools=True)
    *before, last = chat.encode(CALL)
    assert not any(reader.feed([token]) for token in before)
    (call,) = reader.feed([last]).tool_calls
    assert json.loads(call["function"]["arguments"]) == {"a": 1}


def test_thoughts_are_recognised_by_template_or_vocabulary():
    assert recognise_reasoning("a <think> b", lambda _: False) is THINK
    assert recognise_reasoning("", lambda token: token == "<think>") is THINK
    assert recognise_reasoning("[THINK]", lambda _: False) is REASONING_FORMATS["mistral"]
    assert recognise_reasoning("", lambda _: False) is REASONING_FORMATS["none"]


def test_a_parser_that_waits_behind_the_end_is_told_apart_from_a_short_reply(make_chat, tmp_path):
    class Patient(HermesParser):
        def read(self, source, sink, tools):
            yield from iter([None] * 9)

    make_chat()
    chat = Chat.from_directory(tmp_path, parser=Patient())
    with pytest.raises(RuntimeError, match="waits for more text"):
        read(chat, "<tool_call>")
