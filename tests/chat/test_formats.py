"""Every format: what its template wrote is read back, any text is read alike in any pieces, nothing is lost."""

import functools
import itertools
import json
import re
import time
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core.api.reasoning import REASONING_FORMATS
from agentrl_core.chat.parsers.hermes import HermesParser
from agentrl_core.chat.parsers.llama3 import Llama3Parser
from agentrl_core.chat.parsers.qwen3_coder import Qwen3CoderParser
from agentrl_core.chat.recognition import recognise_parser
from agentrl_core.chat.replies import ReplyFormat, ReplyReader, parse_reply
from agentrl_core.chat.template import ChatTemplate
from agentrl_core.plugins.manager import load_registry
from agentrl_parsers.glm4 import Glm4Parser
from agentrl_parsers.harmony import HarmonyParser
from agentrl_parsers.minicpm import MiniCPMParser
from agentrl_parsers.mistral import MistralParser
from agentrl_parsers.sections import DeepSeekParser, KimiK2Parser

TEMPLATES = Path(__file__).parent / "templates"
PARSERS = {
    "hermes": HermesParser,
    "qwen3_coder": Qwen3CoderParser,
    "llama3": Llama3Parser,
    "llama3_tagged": Llama3Parser,
    "mistral": MistralParser,
    "mistral_named": MistralParser,
    "deepseek": DeepSeekParser,
    "deepseek_v31": DeepSeekParser,
    "kimi_k2": KimiK2Parser,
    "glm4": Glm4Parser,
    "minicpm": MiniCPMParser,
    "harmony": HarmonyParser,
}
BARE_TEXT = {
    "qwen3_coder": ("<parameter=", "</parameter>"),
    "glm4": ("<arg_key>", "</arg_value>"),
    "minicpm": ("<|tool_call_start|>", "<|tool_call_end|>"),
}
"""Formats that write strings without escapes -> what a string cannot hold there."""
MARKS = {
    "hermes": ["<tool_call>", "</tool_call>", '{"name": "f", "arguments": {}}', "<code>", "</code>"],
    "qwen3_coder": [
        *["<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>", "</parameter>"],
        *["<function=", "<parameter=", ">", "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>"],
    ],
    "llama3": ["<|python_tag|>", '{"name": "f", "parameters": {}}', ";", '"name":', '"parameters":'],
    "mistral": ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[", "]", ",", '{"name": "f", "arguments": {}}', "f{}"],
    "deepseek": [
        *DeepSeekParser.openers,
        *["<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "function", "f\n```json\n{}\n```", "```"],  # noqa: RUF001 - its marks
    ],
    "kimi_k2": [
        *KimiK2Parser.openers,
        *["<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>", "functions.f:0", "{}"],
    ],
    "glm4": ["<tool_call>", "</tool_call>", "f", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    "minicpm": ["<|tool_call_start|>", "<|tool_call_end|>", "```python\n", "```", "f(a=1)", "f(", ")", "1", "'"],
    "harmony": [
        *["<|channel|>", "<|start|>", "<|message|>", "<|end|>", "<|call|>", "<|constrain|>"],
        *["analysis", "final", "commentary", "assistant", " to=functions.f", "{}", "to="],
    ],
}
"""What the texts of the fuzzing are made of."""
ENDS = ("<|im_end|>", "<|eot_id|>", "</s>", "<|call|>", "<|end|>")

identifiers = st.from_regex(r"[a-z_][a-zA-Z0-9_]{0,8}", fullmatch=True)
texts = st.text() | st.sampled_from(
    [mark for marks in MARKS.values() for mark in marks] + ['"', "\\", "\n", "'", "\n\n", " a ", "1", "null", "True"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
calls = st.lists(st.tuples(identifiers, st.dictionaries(identifiers, values, max_size=3)), min_size=1, max_size=3)


def replies(name, reasoning="none"):
    return ReplyFormat(PARSERS[name](), REASONING_FORMATS[reasoning])


@functools.cache
def template(name):
    return ChatTemplate((TEMPLATES / f"{name}.jinja").read_text(), {"bos_token": "<s>", "eos_token": "</s>"})


def written(name, message):
    """Return a reply as the template writes it, without the end of the turn."""
    question = {"role": "user", "content": "q"}
    text = template(name).render([question, message], add_generation_prompt=False)
    text = text.removeprefix(template(name).render([question])).rstrip("\n")
    return functools.reduce(str.removesuffix, ENDS, text)


def message(wanted, content=""):
    made = [
        {"id": f"call_{index:09}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for index, (name, arguments) in enumerate(wanted)
    ]
    return {"role": "assistant", "content": content, "tool_calls": made}


def found(reply):
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in reply.tool_calls]


def tools_for(wanted):
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    made = {}
    for name, arguments in wanted:
        properties = {key: {"type": kinds.get(type(value), "null")} for key, value in arguments.items()}
        made[name] = {
            "type": "function",
            "function": {"name": name, "parameters": {"type": "object", "properties": properties}},
        }
    return list(made.values())


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=30)
@given(data=st.data())
def test_what_the_template_wrote_comes_back(name, data):
    wanted = data.draw(calls.filter(lambda made: len({called for called, _ in made}) == len(made)))
    if name in BARE_TEXT and any(mark in json.dumps(wanted, ensure_ascii=False) for mark in BARE_TEXT[name]):
        return
    if name == "harmony":
        wanted = wanted[:1]  # it writes one call, and waits for the result
    reply = parse_reply(written(name, message(wanted)), replies(name, "minicpm"), tools=tools_for(wanted))
    assert (found(reply), reply.errors, reply.content) == (wanted, (), "")


@pytest.mark.parametrize("name", [name for name in PARSERS if "llama3" not in name and name != "harmony"])
def test_content_before_calls_stays_content(name):
    wanted = [("f", {"a": 1}), ("g", {})]
    reply = parse_reply(written(name, message(wanted, "Let me see.")), replies(name), tools=tools_for(wanted))
    assert found(reply) == wanted
    assert "Let me see." in reply.content


@pytest.mark.parametrize("name", PARSERS)
def test_the_template_tells_the_format(name):
    source = (TEMPLATES / f"{name}.jinja").read_text()
    assert type(recognise_parser(source, load_registry())) is PARSERS[name]


class Characters:
    """A decoder whose ids are characters."""

    def feed(self, ids):
        return "".join(ids)

    end = feed


def streamed(form, text, cuts, *, stop=(), calls=True, thinking=False):
    """Read a text in pieces; the pieces put together, and the whole."""
    steps = functools.partial(form.steps, tools=(), calls=calls, thinking=thinking)
    reader = ReplyReader(Characters(), steps, calls=calls, stop=stop)
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    shown = [reader.feed(list(text[begin:end])) for begin, end in itertools.pairwise(edges)]
    whole = reader.end()
    shown.append(reader.rest())
    together = attrs.evolve(
        whole,
        content="".join(piece.content for piece in shown),
        reasoning="".join(piece.reasoning for piece in shown),
        tool_calls=tuple(call for piece in shown for call in piece.tool_calls),
    )
    return together, whole


def without_ids(reply):
    return attrs.evolve(reply, tool_calls=tuple(call["function"] for call in reply.tool_calls))


@st.composite
def fuzzed(draw, name):
    pieces = st.sampled_from([*MARKS[name], "<think>", "</think>", "{", "}", '"', "\\", " ", "\n", "x", "END", "EN"])
    return "".join(draw(st.lists(pieces | st.text(max_size=3), max_size=14)))


@pytest.mark.parametrize("name", MARKS)
@settings(max_examples=60)
@given(data=st.data())
def test_any_text_in_any_pieces_is_read_alike(name, data):
    text = data.draw(fuzzed(name))
    cuts = data.draw(st.lists(st.integers(0, 200), max_size=8) | st.just(range(200)))
    form = replies(name, data.draw(st.sampled_from(["none", "think"])))
    thinking, wanted = data.draw(st.booleans()), data.draw(st.booleans())
    together, whole = streamed(form, text, cuts, calls=wanted, thinking=thinking)
    assert together == whole
    if wanted:
        assert without_ids(whole) == without_ids(parse_reply(text, form, thinking=thinking))
    cut = text.split("END")[0]
    together, whole = streamed(form, text, cuts, stop=("END",), calls=wanted, thinking=thinking)
    assert together == whole
    assert without_ids(whole) == without_ids(streamed(form, cut, (), calls=wanted, thinking=thinking)[1])


@pytest.mark.parametrize("name", MARKS)
@settings(max_examples=60)
@given(data=st.data())
def test_nothing_is_lost_without_a_word(name, data):
    text = data.draw(fuzzed(name))
    reply = parse_reply(text, replies(name))
    outside = re.sub("<think>.*?</think>", "", text, flags=re.DOTALL)
    if not reply.tool_calls and name not in {"deepseek", "kimi_k2", "harmony"}:
        assert reply.content == text
    if not (reply.tool_calls or reply.errors) and name != "harmony":
        assert not any(opener in outside for opener in PARSERS[name].openers)
    if name in {"deepseek", "kimi_k2"} and not reply.tool_calls:
        assert reply.errors or reply.content == text


@pytest.mark.slow
@pytest.mark.parametrize("name", MARKS)
def test_hostile_texts_take_no_quadratic_time(name):
    units = [*MARKS[name], "<think>", "{", '{"a": ', "[", '"', "\\", " ", "a "]
    units += ["".join(MARKS[name][:count]) for count in range(2, 6)] + [MARKS[name][0] + '{"']
    units += [MARKS[name][0] + unit for unit in MARKS[name]]
    slow = []
    for unit in units:
        for text in (unit * (100_000 // len(unit)), MARKS[name][0] + unit * (100_000 // len(unit))):
            begin = time.process_time()
            parse_reply(text, replies(name))
            if time.process_time() - begin > 1.0:
                slow.append(unit)
    assert slow == []


def test_a_long_call_in_small_pieces_takes_no_quadratic_time():
    arguments = json.dumps({"code": 'print("}")\n</tool_call>' * 3000})
    text = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
    begin = time.process_time()
    _, whole = streamed(replies("hermes"), text, range(0, len(text), 3))
    assert found(whole) == [("f", json.loads(arguments))]
    assert time.process_time() - begin < 3.0


@pytest.mark.parametrize("body", [r'{"a": "\ud800"}', '{"a": NaN}', '{"a": 1,}', '["a"]', '{"a": ' * 5000, '{"a": 1'])
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("llama3", '{{"name": "f", "parameters": {}}}'),
        ("mistral", '[TOOL_CALLS] [{{"name": "f", "arguments": {}}}]'),
        ("mistral", "[TOOL_CALLS]f[ARGS]{}"),
        ("kimi_k2", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"),
        ("deepseek", DeepSeekParser.openers[1] + "function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>"),  # noqa: RUF001 - its marks
        ("deepseek", DeepSeekParser.openers[1] + "f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"),  # noqa: RUF001 - its marks
    ],
)
def test_arguments_that_are_no_strict_json_are_malformed_in_every_format(name, form, body):
    text = form.format(body)
    reply = parse_reply(text, replies(name))
    assert (reply.content, reply.tool_calls, len(reply.errors)) == (text, (), 1)
