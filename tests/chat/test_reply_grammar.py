"""What a reply must look like, judged by llguidance token by token."""

import json

import pytest
from tokenizers import Tokenizer

from agentrl_core.api.reasoning import REASONING_FORMATS, ReasoningFormat
from agentrl_core.chat import Chat
from agentrl_core.engines.constraints import Grammars
from agentrl_core.errors import RequestError
from agentrl_core.types import Grammar
from agentrl_parsers.glm4 import Glm4Parser
from agentrl_parsers.harmony import HarmonyParser

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
ANSWER = Grammar(kind="json_schema", value=json.dumps(SCHEMA))
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"properties": {"a": {"type": "integer"}}}}}
    for name in ("add", "take")
]
OK = '{"ok": true}'
PROMPT = "<|im_start|>assistant\n"


def call(name="add"):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"a": 1}}}}\n</tool_call>'


@pytest.fixture
def judge(make_chat, tmp_path):
    """Return `accepts(text)` for a grammar of `Chat.grammar`."""

    def make(answer=None, tools=(), *, required=False, parallel=True, prompt=PROMPT, reasoning=None, parser=None):
        chat = make_chat()
        if reasoning or parser:
            chat = Chat.from_directory(tmp_path, parser=parser, reasoning=reasoning)
        grammar = chat.grammar(answer, tools, required=required, parallel=parallel, prompt_ids=chat.encode(prompt))
        grammars = Grammars(Tokenizer.from_file(str(tmp_path / "tokenizer.json")), vocab_size=chat.vocab_size)

        def accepts(text):
            matcher = grammars.constraint(grammar, ()).matcher
            ids = chat.encode(text)
            return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

        return accepts

    return make


def test_a_free_reply_has_no_grammar(make_chat):
    assert make_chat().grammar(None, TOOLS, required=False, parallel=True, prompt_ids=[1]) is None


def test_an_answer_may_come_behind_a_thought(judge):
    accepts = judge(ANSWER)
    assert accepts(OK)
    assert accepts(f"<think>\nis a < b? {OK}\n</think>\n\n{OK}")
    assert accepts(f"<think></think>{OK}")
    assert not accepts(f"<think>on and on {OK}")
    assert not accepts(f"<think>one</think><think>two</think>{OK}")
    assert not accepts(f"well {OK}")
    assert not accepts('{"ok": 1}')
    assert not accepts(OK + OK)


def test_a_thought_that_the_prompt_began_must_end(judge):
    accepts = judge(ANSWER, prompt=PROMPT + "<think>\n")
    assert accepts(f"hm</think>\n{OK}")
    assert not accepts(OK)
    assert not accepts(f"<think>hm</think>{OK}</think>")


@pytest.mark.parametrize(
    "options", [{"prompt": PROMPT + "<think>\n\n</think>\n\n"}, {"reasoning": REASONING_FORMATS["none"]}]
)
def test_where_no_thought_may_come_the_answer_stands_as_it_is(judge, make_chat, options):
    accepts = judge(ANSWER, **options)
    assert accepts(OK)
    assert not accepts(f"<think>hm</think>{OK}")


def test_tags_that_are_no_tokens_are_text(judge):
    accepts = judge(ANSWER, reasoning=ReasoningFormat(open="[T]", close="[/T]"))
    assert accepts(OK)
    assert accepts(f"[T]hm [/t] \n[/T]\n{OK}")
    assert not accepts(f"[T]hm[/T]{OK}[/T]")


@pytest.mark.parametrize("parallel", [True, False])
def test_a_required_call_is_one_or_several(judge, parallel):
    accepts = judge(tools=TOOLS, required=True, parallel=parallel)
    assert accepts(call("take"))
    assert accepts(f"<think>\nhm\n</think>\n\n{call()}")
    assert accepts(f"{call()}\n{call('take')}") is parallel
    assert not accepts("no")
    assert not accepts("")
    assert not accepts(call("other"))
    assert not accepts(call().replace("1", '"one"'))


def test_a_required_call_leaves_no_answer(judge):
    accepts = judge(ANSWER, tools=TOOLS, required=True)
    assert accepts(call())
    assert not accepts(OK)


def test_with_tools_an_answer_may_be_a_call(judge):
    accepts = judge(ANSWER, tools=TOOLS)
    for reply in (OK, call(), f"{call()}\n{call()}", f"<think>a</think>\n{OK}", f"<think>a</think>{call()}"):
        assert accepts(reply)
    for reply in ("no", OK + call(), f"I call {call()}"):
        assert not accepts(reply)


def test_any_json_object_beside_tools(judge):
    accepts = judge(Grammar(kind="json_object"), tools=TOOLS)
    assert accepts('{"a": [1, {}]}')
    assert accepts(call())
    assert not accepts("[1]")


def test_blanks_are_bounded(judge):
    accepts = judge(ANSWER, tools=TOOLS)
    assert accepts('{"ok":' + " " * 20 + "true}")
    assert not accepts('{"ok":' + " " * 30 + "true}")


@pytest.mark.parametrize(
    ("options", "param", "name"),
    [
        ({"tools": TOOLS, "required": True, "parser": Glm4Parser()}, "tool_choice", "Glm4Parser"),
        ({"answer": ANSWER, "tools": TOOLS, "parser": Glm4Parser()}, "response_format", "Glm4Parser"),
        ({"answer": ANSWER, "parser": HarmonyParser()}, "response_format", "HarmonyParser"),
    ],
)
def test_what_a_format_cannot_say_is_refused_by_its_name(judge, options, param, name):
    with pytest.raises(RequestError, match=name) as caught:
        judge(**options)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "unsupported_value", param)
