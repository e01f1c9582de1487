"""Fixtures for chat tests: a tiny model directory with byte-level BPE, ChatML tokens and a Hermes template."""

import json

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from agentrl_core.chat import Chat

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

HERMES = """{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{%- if messages[0].role == 'system' %}{{ messages[0].content }}
{% endif %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}{%- for message in messages %}{%- if message.role == 'user' %}<|im_start|>user
{{ message.content }}<|im_end|>
{% elif message.role == 'assistant' %}<|im_start|>assistant
{% generation %}{{ message.content or '' }}{%- for call in message.tool_calls or [] %}
{%- if loop.index0 or message.content %}{{ '\\n' }}{% endif %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments }}}
</tool_call>{%- endfor %}<|im_end|>{% endgeneration %}{{ '\\n' }}{% elif message.role == 'tool' %}<|im_start|>user
<tool_response>{{ message.content }}</tool_response><|im_end|>
{% endif %}{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def bpe_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = ['the weather in Paris is {"name": "weather", "arguments": {"city": "Paris"}} and what is the answer?'] * 2
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in TAGS])
    return tokenizer


def write_model_dir(directory, template=HERMES, **settings):
    bpe_tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(template)
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", **settings}))
    return directory


@pytest.fixture(scope="session")
def library_tokenizer():
    """The library's own object, with added tokens that byte-level text cannot be told from."""
    tokenizer = bpe_tokenizer()
    tokenizer.add_tokens([AddedToken("Ġé → plain text", special=False), AddedToken("héÿ", special=True)])
    return tokenizer


@pytest.fixture
def make_chat(tmp_path):
    def make(template=HERMES, **settings):
        return Chat.from_directory(write_model_dir(tmp_path, template, **settings))

    return make


@pytest.fixture(scope="session")
def chat(tmp_path_factory):
    return Chat.from_directory(write_model_dir(tmp_path_factory.mktemp("model")))
