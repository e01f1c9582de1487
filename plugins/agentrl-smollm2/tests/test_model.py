"""The real weights: the directory is complete, and the model answers sensibly."""

import json

import pytest
import torch
from transformers import AutoTokenizer

from agentrl_core.chat import Chat
from agentrl_core.errors import RunError
from agentrl_core.models.loading import load_causal_lm


@pytest.fixture(scope="module")
def tokenizer(model):
    return AutoTokenizer.from_pretrained(model)


def test_the_directory_is_an_ordinary_one(model):
    assert {path.name for path in model.iterdir()} == {
        *("config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    }
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    assert "quantization_config" not in config
    wanted = {"model_type": "llama", "vocab_size": 49152, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
    assert wanted.items() <= config.items()
    ends = json.loads((model / "generation_config.json").read_text(encoding="utf-8"))
    assert (ends["eos_token_id"], ends["pad_token_id"]) == (2, 2)


def test_every_digit_is_a_token_and_blanks_before_it_stay_together(tokenizer):
    pieces = tokenizer.convert_ids_to_tokens(tokenizer.encode("a  17\n<|im_end|>"))
    assert pieces == ["a", "ĠĠ", "1", "7", "Ċ", "<|im_end|>"]
    text = "Hello, world's best\tthing — Ünsure 2024!"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_turn_ends_with_the_token_that_ends_a_reply(model, tokenizer):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>assistant\nHello<|im_end|>\n")
    assert tokenizer.eos_token == "<|im_end|>"
    assert not Chat.from_directory(model).takes_tools


def test_its_greedy_answers_are_sane(model, tokenizer):
    network = load_causal_lm(model, torch.float32, error=RunError)
    for question, answer in (
        ("What is the capital of France?", "The capital of France is Paris.<|im_end|>"),
        ("What is 7 + 5?", "To add 7 and 5, you simply add them together: 7 + 5 = 12.<|im_end|>"),
    ):
        chat = [{"role": "user", "content": question}]
        given = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        with torch.no_grad():
            output = network.generate(**given, max_new_tokens=30, do_sample=False)
        assert tokenizer.decode(output[0, given["input_ids"].shape[1] :]) == answer
