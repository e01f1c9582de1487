"""What a grammar of calls lets through is a call of the tools that were given, in every format that has one."""

import json
import random

import pytest
from tokenizers import AddedToken, Tokenizer

from agentrl_core.api.reasoning import REASONING_FORMATS
from agentrl_core.chat import Chat
from agentrl_core.chat.parsers.hermes import HermesParser
from agentrl_core.chat.parsers.llama3 import Llama3Parser
from agentrl_core.chat.parsers.qwen3_coder import Qwen3CoderParser
from agentrl_core.chat.replies import ReplyFormat
from agentrl_core.engines.constraints import Grammars, allowed_tokens
from agentrl_core.types import Grammar
from agentrl_parsers.harmony import HarmonyParser
from agentrl_parsers.mistral import MistralParser
from agentrl_parsers.sections import DeepSeekParser, KimiK2Parser

MARKS = [
    *["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|channel|>", "<|message|>", "<|constrain|>"],
    *["<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<think>", "</think>"],
    *[*DeepSeekParser.openers, *KimiK2Parser.openers, "<|tool_calls_section_end|>", "<|end|>", "<|start|>"],
]
PARSERS = {
    "hermes": HermesParser(),
    "qwen3_coder": Qwen3CoderParser(),
    "llama3": Llama3Parser(),
    "mistral": MistralParser(),
    "mistral_named": MistralParser(arrays=False),
    "deepseek": DeepSeekParser(),
    "deepseek_v31": DeepSeekParser(fenced=False),
    "kimi_k2": KimiK2Parser(),
    "harmony": HarmonyParser(),
}
PLACE = {"enum": ["Paris", "Oslo"]}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"$ref": "#/$defs/place"}, "days": {"enum": [1, 2]}, "on": {"type": "boolean"}},
                "required": ["city", "on"],
                "additionalProperties": False,
                "$defs": {"place": PLACE},
            },
        },
    },
    {"type": "function", "function": {"name": "stop"}},
]


@pytest.fixture(params=["", "added", "special"])
def chat_and_grammars(request, make_chat, tmp_path):
    """A chat whose marks are text, or tokens that are none."""
    make_chat()
    path = tmp_path / "tokenizer.json"
    description = json.loads(path.read_text())
    kept = [token for token in description["added_tokens"] if token["special"]]
    path.write_text(json.dumps({**description, "added_tokens": kept}))
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_tokens(
        [AddedToken(mark, special=request.param == "special") for mark in (MARKS if request.param else ())]
    )
    tokenizer.save(str(path))
    chat = Chat.from_directory(tmp_path)
    return chat, Grammars(Tokenizer.from_file(str(path)), vocab_size=chat.vocab_size)


def walk(chat, grammars, grammar, rng, limit=4000):
    """Sample tokens that the grammar allows, at random, until the end is allowed."""
    stop = chat.stop_token_ids[0]
    constraint = grammars.constraint(Grammar(kind="lark", value=grammar), [stop])
    ids = []
    for _ in range(limit):
        allowed, faults = allowed_tokens([constraint])
        assert faults == [""], (faults, chat.decode(ids))
        choices = allowed[0].nonzero()[0].tolist()
        if stop in choices:
            return ids
        # Blanks between the tokens of JSON would never end.
        ids.append(rng.choice([token for token in choices if chat.decode([token]).strip()] or choices))
        constraint.advance(ids[-1])
    raise AssertionError(f"no end: {chat.decode(ids)}")


def use(chat, parser, reasoning="none"):
    chat.parser, chat.reasoning = parser, REASONING_FORMATS[reasoning]
    chat.replies = ReplyFormat(parser, chat.reasoning)


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("parallel", [False, True])
def test_what_the_grammar_lets_through_is_a_call(chat_and_grammars, name, parallel):
    chat, grammars = chat_and_grammars
    use(chat, PARSERS[name])
    tools = TOOLS[:1]
    grammar = chat.grammar(None, tools, required=True, parallel=parallel, prompt_ids=chat.encode("x")).value
    grammar = grammar.replace("calls: thought? call", "calls: call")  # at random a thought would hardly end
    for seed in range(5):
        ids = walk(chat, grammars, grammar, random.Random(seed))
        reply = chat.reader(parse_tools=True, tools=tools).end(ids)
        assert (reply.errors, reply.content) == ((), ""), chat.decode(ids)
        assert len(reply.tool_calls) == 1 or (parallel and len(reply.tool_calls) > 1)
        arguments = json.loads(reply.tool_calls[0]["function"]["arguments"])
        assert arguments["city"] in PLACE["enum"]
        assert isinstance(arguments["on"], bool)
        assert arguments.get("days") in (None, 1, 2)


@pytest.mark.parametrize("name", PARSERS)
def test_two_calls_are_let_through_only_if_wanted(chat_and_grammars, name):
    if name == "harmony":
        return
    chat, grammars = chat_and_grammars
    use(chat, PARSERS[name])
    grammar = chat.grammar(None, TOOLS[:1], required=True, parallel=False, prompt_ids=chat.encode("x")).value
    ids = walk(chat, grammars, grammar, random.Random(1))
    one = chat.decode(ids)
    for parallel in (False, True):
        grammar = chat.grammar(None, TOOLS[:1], required=True, parallel=parallel, prompt_ids=chat.encode("x")).value
        constraint = grammars.constraint(Grammar(kind="lark", value=grammar), [chat.stop_token_ids[0]])
        for token in ids:
            constraint.advance(token)
        if name in {"mistral", "deepseek", "deepseek_v31", "kimi_k2"}:  # their end says that no other call comes
            assert constraint.exhausted, one
        else:
            assert constraint.exhausted is not parallel, one


def test_a_thought_may_come_first_unless_the_prompt_ends_it(chat_and_grammars):
    chat, grammars = chat_and_grammars
    use(chat, HermesParser(), "think")
    call = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
    cases = [
        ("x", f"<think>a</think>\n\n{call}", True),
        ("x", call, True),
        ("x<think>\n", f"a\n</think>\n\n{call}", True),
        ("x<think>\n", call, False),
        ("x<think>\n\n</think>\n\n", call, True),
        ("x<think>\n\n</think>\n\n", f"<think>a</think>{call}", False),
    ]
    for prompt, text, complete in cases:
        grammar = chat.grammar(None, TOOLS[1:], required=True, parallel=False, prompt_ids=chat.encode(prompt)).value
        constraint = grammars.constraint(Grammar(kind="lark", value=grammar), [chat.stop_token_ids[0]])
        taken = True
        for token in chat.encode(text):
            allowed, _ = allowed_tokens([constraint])
            taken = taken and bool(allowed[0][token])
            constraint.advance(token)
        allowed, _ = allowed_tokens([constraint])
        assert (taken and bool(allowed[0][chat.stop_token_ids[0]])) == complete, (prompt, text)
