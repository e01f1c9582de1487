"""A tiny model with random weights for tests: `toy_policy` writes a complete model directory in under a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOOL_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
NUM_TOKENS = len(SPECIAL_TOKENS) + len(TOOL_TOKENS) + 256

CHAT_TEMPLATE = """\
{%- if tools %}
<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}
Tools:
{% for tool in tools %}
{{ tool | tojson }}
{% endfor %}
Call one with <tool_call>{"name": NAME, "arguments": ARGUMENTS}</tool_call>.<|im_end|>
{% elif messages[0].role == 'system' %}
<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}
<|im_start|>user
{{ message.content }}<|im_end|>
{% elif message.role == 'assistant' %}
<|im_start|>assistant
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}</tool_call>
{%- endfor %}<|im_end|>
{% elif message.role == 'tool' %}
<|im_start|>user
<tool_response>{{ message.content }}</tool_response><|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}
<|im_start|>assistant
{% endif %}"""


def toy_policy(
    directory: Path,
    *,
    architecture: Literal["qwen3", "qwen2", "llama", "qwen3_moe", "mixtral", "olmoe"] = "qwen3",
    seed: int = 0,
    vocab_size: int = NUM_TOKENS,
    hidden_size: int = 32,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 8,
    context_length: int = 1024,
    tied: bool = True,
    **options: Any,
) -> Path:
    """Write model, tokenizer and chat template into `directory` and return it.

    The tokenizer has one token per byte plus the special tokens of ChatML and of Hermes tool calls. A larger
    `vocab_size` adds token ids without a text. `options` go into the model's config (`rope_parameters`,
    `num_experts`, …). Raises ValueError if `vocab_size` is smaller than the tokenizer.
    """
    if vocab_size < NUM_TOKENS:
        raise ValueError(f"vocab_size {vocab_size} is too small: the tokenizer has {NUM_TOKENS} tokens")
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    write_tokenizer(directory, context_length=context_length)
    config = AutoConfig.for_model(
        architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=context_length,
        tie_word_embeddings=tied,
        eos_token_id=SPECIAL_TOKENS.index("<|im_end|>"),
        pad_token_id=SPECIAL_TOKENS.index("<|endoftext|>"),
        bos_token_id=None,
        **options,
    )
    # The fork keeps this seed from changing the random numbers of the test that calls this.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        auto: Any = AutoModelForCausalLM
        model = auto.from_config(config)
        for parameter in model.parameters():
            # The usual standard deviation of 0.02 gives nearly uniform distributions, which would hide engine faults.
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(directory)
    return directory


def write_tokenizer(directory: Path, *, context_length: int = 1024) -> None:
    """Write tokenizer.json and tokenizer_config.json: bytes, special tokens, chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    names = (*SPECIAL_TOKENS, *TOOL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer = Tokenizer(models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in TOOL_TOKENS])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": context_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
