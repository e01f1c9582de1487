import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl_core.chat import Chat
from agentrl_core.errors import ConfigError
from agentrl_core.models.tiny import build

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "move",
            "description": "Walk.",
            "parameters": {
                "type": "object",
                "properties": {"dir": {"type": "string"}, "steps": {"type": "object", "properties": {}}},
            },
        },
    },
    {"type": "function", "function": {"name": "look"}},
]


def call(name, **arguments):
    return {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}


DIALOGUE = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Find the well. It is 12 left."},
    {"role": "assistant", "content": None, "tool_calls": [call("move", dir="left"), call("look")]},
    {"role": "tool", "tool_call_id": "call_0", "content": "It is 3 up."},
    {"role": "tool", "tool_call_id": "call_1", "content": "<dark> & 'cold'"},
    {"role": "assistant", "content": "Ünsure.", "tool_calls": [call("move", dir="up")]},
    {"role": "tool", "tool_call_id": "call_2", "content": "Found"},
    {"role": "assistant", "content": "Done in 20 steps."},
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    build(path, seed=0, conversations=[{"messages": DIALOGUE, "tools": TOOLS}] * 20, size="0.1M")
    return path


@pytest.fixture(scope="module")
def tokenizer(directory):
    return AutoTokenizer.from_pretrained(directory)


def test_the_template_is_hermes_in_few_tokens(tokenizer):
    text = tokenizer.apply_chat_template(DIALOGUE, tools=TOOLS, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nmove(dir, steps)\nlook()\nBe brief.<|im_end|>"
        "<|im_start|>user\nFind the well. It is 12 left.<|im_end|>"
        '<|im_start|>assistant\n<tool_call>{"name": "move", "arguments": {"dir": "left"}}</tool_call>'
        '<tool_call>{"name": "look", "arguments": {}}</tool_call><|im_end|>'
        "<|im_start|>user\n<tool_response>It is 3 up.</tool_response>"
        "<tool_response><dark> & 'cold'</tool_response><|im_end|>"
        '<|im_start|>assistant\nÜnsure.<tool_call>{"name": "move", "arguments": {"dir": "up"}}</tool_call><|im_end|>'
        "<|im_start|>user\n<tool_response>Found</tool_response><|im_end|>"
        "<|im_start|>assistant\nDone in 20 steps.<|im_end|>"
        "<|im_start|>assistant\n"
    )


def test_a_conversation_starts_like_its_beginning(tokenizer):
    whole = tokenizer.apply_chat_template(DIALOGUE, tools=TOOLS, tokenize=False)
    for place, message in enumerate(DIALOGUE):
        if message["role"] == "assistant":
            for end, prompt in ((place, True), (place + 1, False)):
                start = tokenizer.apply_chat_template(
                    DIALOGUE[:end], tools=TOOLS, tokenize=False, add_generation_prompt=prompt
                )
                assert whole.startswith(start)


def test_the_generation_marks_cover_what_the_policy_samples(tokenizer):
    encoded = tokenizer.apply_chat_template(DIALOGUE, tools=TOOLS, return_assistant_tokens_mask=True, return_dict=True)
    pairs = zip(encoded["input_ids"], encoded["assistant_masks"], strict=True)
    assert tokenizer.decode([token for token, marked in pairs if marked]) == (
        '<tool_call>{"name": "move", "arguments": {"dir": "left"}}</tool_call>'
        '<tool_call>{"name": "look", "arguments": {}}</tool_call><|im_end|>'
        'Ünsure.<tool_call>{"name": "move", "arguments": {"dir": "up"}}</tool_call><|im_end|>'
        "Done in 20 steps.<|im_end|>"
    )


def user(content):
    return {"role": "user", "content": content}


SYSTEM = {"role": "system", "content": "s"}


@pytest.mark.parametrize(
    ("messages", "tools", "text"),
    [
        ([user("a")], None, "<|im_start|>user\na<|im_end|>"),
        ([SYSTEM], None, "<|im_start|>system\ns<|im_end|>"),
        (
            [user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])],
            None,
            "<|im_start|>user\nab<|im_end|>",
        ),
        ([SYSTEM], [{"name": "flat"}], "<|im_start|>system\nflat()\ns<|im_end|>"),
        ([user("a"), SYSTEM], None, "<|im_start|>user\na<|im_end|><|im_start|>system\ns<|im_end|>"),
    ],
)
def test_other_shapes_of_conversations_render(tokenizer, messages, tools, text):
    assert tokenizer.apply_chat_template(messages, tools=tools, tokenize=False) == text


def test_the_gateways_chat_reads_it_alike(directory, tokenizer):
    chat = Chat.from_directory(directory)
    text = chat.render(DIALOGUE, TOOLS, add_generation_prompt=True)
    assert text == tokenizer.apply_chat_template(DIALOGUE, tools=TOOLS, tokenize=False, add_generation_prompt=True)
    assert chat.encode(text) == tokenizer(text)["input_ids"]
    assert chat.decode(chat.encode("Ünsure 12 🙂")) == "Ünsure 12 🙂"
    assert set(chat.stop_token_ids) == {tokenizer.convert_tokens_to_ids("<|im_end|>")}
    reply = chat.encode('<tool_call>{"name": "move", "arguments": {"dir": "up"}}</tool_call><|im_end|>')
    parsed = chat.reader(parse_tools=True).end(reply)
    assert len(parsed.tool_calls) == 1


def test_no_merge_crosses_a_special_token_a_reply_or_a_digit(directory, tokenizer):
    vocabulary = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    texts = [tokenizer.convert_tokens_to_string([token]) for token in vocabulary]
    assert not [text for text in texts if "assistant\n" in text and text != "assistant\n"]
    assert not [text for text in texts if "tool_call" in text]
    assert not [text for text in texts if len(text) > 1 and any(character.isdigit() for character in text)]
    assert "assistant\n" in texts


def test_tool_marks_stay_visible_when_special_tokens_are_skipped(tokenizer):
    ids = tokenizer('<tool_call>{"a": 1}</tool_call><|im_end|>')["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == '<tool_call>{"a": 1}</tool_call>'


def test_equal_seeds_build_equal_models(directory, tmp_path):
    conversations = [{"messages": DIALOGUE, "tools": TOOLS}] * 20
    torch.manual_seed(123)
    before = torch.get_rng_state()
    for name, seed in (("same", 0), ("other", 1)):
        build(tmp_path / name, seed=seed, conversations=conversations, size="0.1M")
    assert torch.equal(torch.get_rng_state(), before)
    content = [
        (folder / "model.safetensors").read_bytes() for folder in (directory, tmp_path / "same", tmp_path / "other")
    ]
    assert content[0] == content[1] != content[2]
    assert (directory / "tokenizer.json").read_bytes() == (tmp_path / "other" / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(("size", "parameters"), [("0.1M", 0.09e6), ("0.3M", 0.34e6), ("0.8M", 0.8e6), ("4M", 3.3e6)])
def test_a_size_is_about_that_many_parameters(size, parameters, tmp_path):
    build(tmp_path, seed=0, conversations=[{"messages": DIALOGUE}], size=size, context_length=64)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert sum(weight.numel() for weight in model.parameters()) == pytest.approx(parameters, rel=0.15)
    assert model.config.max_position_embeddings == 64


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": "7B"}, "unknown size '7B'; expected one of 0.1M"),
        ({"vocab_size": 256}, "vocab_size: 256 is too small"),
        ({"conversations": []}, "no conversations"),
    ],
)
def test_values_that_cannot_work_are_refused(options, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        build(tmp_path, **({"seed": 0, "conversations": [{"messages": DIALOGUE}]} | options))
