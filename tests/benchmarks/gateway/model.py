"""Model directory without weights for the gateway's benchmark: a 32k byte-level BPE and a chat template.

It is kept in build/benchmarks.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import random
import re
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.report import FOLDER
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 32_000
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TRAINED_ON_BYTES = 12_000_000
_TEMPLATE = """\
{%- if messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- if tools %}<|im_start|>system
Write a call as <tool_call>{"name": …, "arguments": {…}}</tool_call>. Tools:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% elif message.role == 'assistant' %}<|im_start|>assistant
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def model_dir() -> Path:
    """Return the directory; the tokenizer is trained at the first call, which takes some ten seconds."""
    digest = hashlib.blake2b(_TEMPLATE.encode(), digest_size=4).hexdigest()
    directory = FOLDER.absolute() / f"model-{digest}"
    if (directory / "tokenizer.json").exists():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as folder:
        built = Path(folder) / "model"
        built.mkdir()
        _train().save(str(built / "tokenizer.json"))
        (built / "chat_template.jinja").write_text(_TEMPLATE, encoding="utf-8")
        (built / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}), encoding="utf-8")
        built.rename(directory)
    return directory


def words(seed: object) -> Iterator[str]:
    """Yield words forever, in an order of their own for each seed."""
    source = random.Random(repr(seed))
    vocabulary = _vocabulary()
    while True:
        yield source.choice(vocabulary)


@functools.cache
def _vocabulary() -> tuple[str, ...]:
    """Words of the text that the tokenizer was trained on."""
    texts = itertools.islice(_sources(), 50)
    return tuple(sorted({word for text in texts for word in re.findall(r"[A-Za-z]{2,12}[,.]?(?=\s)", text)}))


def _train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(_SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sources(), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in _SPECIALS])
    return tokenizer


def _sources() -> Iterator[str]:
    """Yield the text of Python's own library, file by file."""
    size = 0
    for folder, _, names in sorted(os.walk(sysconfig.get_paths()["stdlib"])):
        if "site-packages" in folder:
            continue
        for name in sorted(names):
            if name.endswith(".py"):
                text = (Path(folder) / name).read_text(encoding="utf-8", errors="ignore")
                size += len(text)
                if size > _TRAINED_ON_BYTES:
                    return
                yield text
