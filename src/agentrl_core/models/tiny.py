"""Build a tiny policy from scratch: a small Qwen3 with random weights and a tokenizer trained on given conversations.

Written as an ordinary Hugging Face directory, so everything else treats it like any other model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from agentrl_core.errors import ConfigError
from agentrl_core.models.progress_bars import no_progress_bars

PAD, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Tags that are single tokens and stay visible when ids are decoded, as in Qwen's vocabulary."""

TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string %}{{ content }}{% else %}{% for part in content or [] %}{{ part.text }}{% endfor %}{% endif -%}
{%- endmacro -%}
{%- if tools or (messages and messages[0].role == 'system') -%}
{{ '<|im_start|>system\\n' }}
{%- for tool in tools or [] -%}
{%- set function = tool.function or tool -%}
{{ function.name }}({{ ((function.parameters or {}).properties or {}) | list | join(', ') }}){{ '\\n' }}
{%- endfor -%}
{%- if messages and messages[0].role == 'system' %}{{ text(messages[0].content) }}{% endif -%}
<|im_end|>
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{{ '<|im_start|>assistant\\n' }}{% generation %}
{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}{{ text(message.content) }}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function or call -%}
<tool_call>{"name": {{ function.name | tojson }}, "arguments": {% if function.arguments is string -%}
{{ function.arguments }}{% else %}{{ function.arguments | tojson }}{% endif %}}</tool_call>
{%- endfor -%}
<|im_end|>{% endgeneration %}
{%- elif message.role == 'tool' -%}
{%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user\\n' }}{% endif -%}
<tool_response>{{ text(message.content) }}</tool_response>
{%- if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>{% endif -%}
{%- elif message.role != 'system' or not loop.first -%}
{{ '<|im_start|>' ~ message.role ~ '\\n' }}{{ text(message.content) }}<|im_end|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}
"""
"""Shortened form of Qwen's format, because every prompt token costs time.

A tool is one line of the system turn, `name(parameter, …)`, and nothing stands between turns. Calls are Hermes JSON;
consecutive tool results share a user turn. The text of a conversation starts with the text of its beginning up to any
assistant message (the template is prefix-stable).
"""


@attrs.frozen
class _Shape:
    """Dimensions of the network."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int


_SHAPES = {
    "0.1M": _Shape(64, 2, 4, 2, 16, 128),
    "0.3M": _Shape(96, 3, 4, 2, 24, 256),
    "0.8M": _Shape(128, 4, 4, 2, 32, 384),
    "4M": _Shape(256, 4, 4, 2, 64, 768),
}


def build(
    directory: Path,
    *,
    seed: int,
    conversations: Sequence[Mapping[str, Any]],
    size: str = "0.3M",
    vocab_size: int = 512,
    context_length: int = 1024,
) -> None:
    """Write tokenizer, template, config and random weights into `directory`.

    `conversations` are `{"messages": […], "tools": […]}`; the tokenizer is trained on them as the template renders
    them. `size` is the number of parameters (0.1M, 0.3M, 0.8M, 4M), `vocab_size` the largest number of tokens, and
    `context_length` is in tokens. Equal arguments write equal weights. Raises `ConfigError` for invalid values.
    """
    if size not in _SHAPES:
        raise ConfigError(f"model.size: unknown size '{size}'; expected one of {', '.join(_SHAPES)}")
    smallest = 256 + 3 + len(MARKERS)
    if vocab_size < smallest:
        raise ConfigError(
            f"model.vocab_size: {vocab_size} is too small; 256 bytes and the special tokens need {smallest}"
        )
    if not conversations:
        raise ConfigError("model: no conversations to train the tiny model's tokenizer on; set warm_start or tasks")
    tokenizer = _tokenizer(conversations, vocab_size, context_length)
    directory.mkdir(parents=True, exist_ok=True)
    with no_progress_bars():
        tokenizer.save_pretrained(directory)
        _model(_SHAPES[size], tokenizer, seed, context_length).save_pretrained(directory)


def _tokenizer(conversations: Sequence[Mapping[str, Any]], vocab_size: int, context_length: int) -> Any:
    """Return a byte-level BPE tokenizer without merges across special tokens; every digit is one token."""
    import transformers
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    wrap: Any = transformers.PreTrainedTokenizerFast  # not typed
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # One token per digit, so that the model can read and copy numbers digit by digit.
            pre_tokenizers.Split(Regex(r"\d|[^\d]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        # The markers are added after training and count towards `vocab_size`.
        vocab_size=vocab_size - len(MARKERS),
        special_tokens=[PAD, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    untrained = wrap(tokenizer_object=core)
    untrained.chat_template = TEMPLATE
    core.train_from_iterator(_corpus(untrained, conversations), trainer)
    # `special=False`, so that decoding without special tokens keeps them.
    core.add_tokens([AddedToken(marker, normalized=False, special=False) for marker in MARKERS])
    tokenizer = wrap(
        tokenizer_object=core,
        eos_token=TURN_END,
        pad_token=PAD,
        extra_special_tokens=[TURN_START],
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def _corpus(renderer: Any, conversations: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the rendered conversations, cut at special tokens and at the beginning of replies.

    The trainer does not cut there by itself. It would learn merges across these places, which no encoding ever uses.
    """
    special = re.compile(
        "|".join(map(re.escape, (PAD, TURN_START, TURN_END, *MARKERS))) + r"|(?<=<\|im_start\|>assistant\n)"
    )
    for conversation in conversations:
        text = renderer.apply_chat_template(
            list(conversation["messages"]), tools=conversation.get("tools"), tokenize=False
        )
        yield from (piece for piece in special.split(text) if piece)


def _model(shape: _Shape, tokenizer: Any, seed: int, context_length: int) -> Any:
    """Return a Qwen3 with random weights that depend on `seed` alone."""
    import torch
    import transformers

    library: Any = transformers  # only partly typed
    config = library.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        max_position_embeddings=context_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    # Do not change the caller's random state.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = library.Qwen3ForCausalLM(config)
    model.generation_config = library.GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    return model
