"""Each parser by the conformance suite, and what holds for one format only."""

import json

import pytest

from agentrl_core.api.reasoning import REASONING_FORMATS
from agentrl_core.chat.replies import ReplyFormat, parse_reply
from agentrl_core.plugins.manager import load_registry
from agentrl_parsers.glm4 import Glm4Parser
from agentrl_parsers.harmony import HarmonyParser
from agentrl_parsers.minicpm import MiniCPMParser
from agentrl_parsers.mistral import MistralParser
from agentrl_parsers.sections import DeepSeekParser, KimiK2Parser
from agentrl_testing import ToolParserSuite, check_plugin

TEXT = ("f", {"a": "b"})
TWO = [TEXT, ("g", {})]
DEEPSEEK, DEEPSEEK_CALL = DeepSeekParser.openers
KIMI, KIMI_CALL = KimiK2Parser.openers
SEPARATOR, CALL_END, END = "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001 - its marks
KIMI_SEPARATOR, KIMI_CALL_END = "<|tool_call_argument_begin|>", "<|tool_call_end|>"


class TestMistral(ToolParserSuite):
    @pytest.fixture
    def parser(self):
        return MistralParser()

    @pytest.fixture
    def examples(self):
        array = '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "b"}}, {"name": "g", "arguments": {}}]'
        return [(array, "", TWO), ('[TOOL_CALLS]f[ARGS]{"a": "b"}', "", [TEXT]), ("[TOOL_CALLS]g{}", "", TWO[1:])]


class TestDeepSeek(ToolParserSuite):
    @pytest.fixture
    def parser(self):
        return DeepSeekParser()

    @pytest.fixture
    def examples(self):
        fenced = f'{DEEPSEEK_CALL}function{SEPARATOR}f\n```json\n{{"a": "b"}}\n```{CALL_END}'
        bare = f"{DEEPSEEK_CALL}g{SEPARATOR}{{}}{CALL_END}"
        return [(f"{DEEPSEEK}{fenced}\n{bare}{END}", "", TWO)]


class TestKimiK2(ToolParserSuite):
    @pytest.fixture
    def parser(self):
        return KimiK2Parser()

    @pytest.fixture
    def examples(self):
        first = f'{KIMI_CALL}functions.f:0{KIMI_SEPARATOR}{{"a": "b"}}{KIMI_CALL_END}'
        second = f"{KIMI_CALL}functions.g:1{KIMI_SEPARATOR}{{}}{KIMI_CALL_END}"
        return [(f"{KIMI}{first}{second}<|tool_calls_section_end|>", "", TWO)]


class TestGlm4(ToolParserSuite):
    @pytest.fixture
    def parser(self):
        return Glm4Parser()

    @pytest.fixture
    def examples(self):
        first = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>b</arg_value>\n</tool_call>"
        return [(f"Well. {first}\n<tool_call>g</tool_call>", "Well.", TWO)]


class TestMiniCPM(ToolParserSuite):
    @pytest.fixture
    def parser(self):
        return MiniCPMParser()

    @pytest.fixture
    def examples(self):
        return [('<|tool_call_start|>\n```python\nf(a="b")\ng()\n```\n<|tool_call_end|>', "", TWO)]


class TestHarmony(ToolParserSuite):
    @pytest.fixture
    def parser(self):
        return HarmonyParser()

    @pytest.fixture
    def examples(self):
        call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "b"}'
        return [(call, "", [TEXT]), ("<|channel|>final<|message|>Yes.<|end|>", "Yes.", [])]


def read_harmony(text):
    return parse_reply(text, ReplyFormat(HarmonyParser(), REASONING_FORMATS["none"]))


def test_channels_of_gpt_oss_are_reasoning_and_content():
    reply = read_harmony("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes.")
    assert (reply.reasoning, reply.content) == ("hm", "Yes.")


@pytest.mark.parametrize(
    "header",
    ["<|channel|>commentary to=functions.f <|constrain|>json", " to=functions.f<|channel|>commentary json"],
)
def test_calls_of_gpt_oss_may_name_their_recipient_first(header):
    reply = read_harmony(f'{header}<|message|>{{"a": 1}}')
    assert [call["function"] for call in reply.tool_calls] == [{"name": "f", "arguments": '{"a": 1}'}]
    assert (reply.content, reply.errors) == ("", ())


def test_a_call_of_gpt_oss_that_is_cut_off_is_reported():
    reply = read_harmony('<|channel|>commentary to=functions.f<|message|>{"a": ')
    assert (reply.tool_calls, len(reply.errors)) == ((), 1)


@pytest.mark.parametrize("parser", [Glm4Parser(), MiniCPMParser()])
def test_formats_without_a_grammar_say_so(parser):
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert parser.grammar(tools, parallel=False, mark=json.dumps) is None


@pytest.mark.parametrize(("template", "fenced"), [(f"{DEEPSEEK} ```json", True), (DEEPSEEK, False)])
def test_the_template_tells_which_form_of_deepseek_a_grammar_demands(template, fenced):
    tools = [{"type": "function", "function": {"name": "f"}}]
    rules = DeepSeekParser.recognise(template).grammar(tools, parallel=False, mark=json.dumps)
    assert ("```json" in rules) is fenced


@pytest.mark.parametrize(("template", "array"), [("[TOOL_CALLS]", True), ("[TOOL_CALLS][ARGS]", False)])
def test_the_template_tells_which_form_of_mistral_a_grammar_demands(template, array):
    tools = [{"type": "function", "function": {"name": "f"}}]
    rules = MistralParser.recognise(template).grammar(tools, parallel=False, mark=json.dumps)
    assert ('"[ARGS]"' not in rules) is array


def test_the_package_is_sound_and_every_parser_has_a_summary():
    check_plugin("agentrl-parsers")
    package = load_registry().package("agentrl-parsers")
    assert {entry.kind for entry in package.entries} == {"tool_parsers"}
    assert all(entry.summary for entry in package.entries)
