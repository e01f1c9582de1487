"""Toy policies load like any model directory, with a working tokenizer and chat template."""

import json
import time

import pytest
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl_testing.policy import NUM_TOKENS, toy_policy

TOOL = {"type": "function", "function": {"name": "move", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "move", "arguments": {"dir": "up"}}}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return toy_policy(tmp_path_factory.mktemp("toy"))


@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama"])
def test_transformers_loads_it(tmp_path, architecture):
    model = AutoModelForCausalLM.from_pretrained(toy_policy(tmp_path, architecture=architecture, tied=False))
    assert model.config.model_type == architecture
    assert model.lm_head.weight is not model.model.embed_tokens.weight


def test_every_text_survives_the_tokenizer(directory):
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    text = "<|im_start|>user\nü 😀\t\x00<tool_call>{}</tool_call><|im_end|>"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert len(ids) == len("user\nü 😀\t\x00{}".encode()) + 4
    assert tokenizer.get_vocab_size() == NUM_TOKENS


def test_special_tokens_are_skipped_and_tool_tokens_are_not(directory):
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids = tokenizer.encode("<tool_call>a</tool_call><|im_end|>", add_special_tokens=False).ids
    assert tokenizer.decode(ids) == "<tool_call>a</tool_call>"


def test_the_template_renders_tools_calls_and_replies(directory):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "moved"},
    ]
    text = tokenizer.apply_chat_template(messages, tools=[TOOL], add_generation_prompt=True, tokenize=False)
    assert text == (
        "<|im_start|>system\nBe brief.\n\nTools:\n"
        + json.dumps(TOOL)
        + '\nCall one with <tool_call>{"name": NAME, "arguments": ARGUMENTS}</tool_call>.<|im_end|>\n'
        "<|im_start|>user\nGo.<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>{"name": "move", "arguments": {"dir": "up"}}</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>moved</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_without_tools_nothing_is_said_about_them(directory):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert text == "<|im_start|>user\nHi<|im_end|>\n"
    assert tokenizer.eos_token == "<|im_end|>"


def test_the_same_seed_gives_the_same_weights(tmp_path, directory):
    again = toy_policy(tmp_path / "again")
    other = toy_policy(tmp_path / "other", seed=1)
    weights = [path / "model.safetensors" for path in (directory, again, other)]
    first, same, different = [path.read_bytes() for path in weights]
    assert first == same != different


def test_it_is_written_in_less_than_a_second(tmp_path):
    start = time.thread_time()
    toy_policy(tmp_path)
    assert time.thread_time() - start < 1


def test_a_vocabulary_that_cannot_hold_the_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has 263 tokens"):
        toy_policy(tmp_path, vocab_size=100)
