import json
import re

import pytest
from transformers import AutoTokenizer

from agentrl_core.chat import Chat
from agentrl_core.data.demonstrations import demonstration
from agentrl_core.errors import DataError
from agentrl_core.models.tiny import build
from agentrl_core.training.demonstrations import Demonstrations

TOOLS = [{"type": "function", "function": {"name": "move", "parameters": {"properties": {"dir": {}}}}}]


def call(direction):
    arguments = json.dumps({"dir": direction})
    return {"id": "call_0", "type": "function", "function": {"name": "move", "arguments": arguments}}


DIALOGUE = [
    {"role": "user", "content": "It is 2 left."},
    {"role": "assistant", "content": "", "tool_calls": [call("left"), call("left")]},
    {"role": "tool", "tool_call_id": "call_0", "content": "It is 1 left."},
    {"role": "tool", "tool_call_id": "call_0", "content": "You are there."},
    {"role": "assistant", "content": "The way is done."},
    {"role": "user", "content": "Thanks"},
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    build(path, seed=0, conversations=[{"messages": DIALOGUE, "tools": TOOLS}] * 9, size="0.1M", context_length=64)
    return path


def demonstrations(directory, rows, *, stop="<|im_end|>", context_length=64, **options):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    return Demonstrations(
        [demonstration(row, f"demos.jsonl:{line}") for line, row in enumerate(rows, start=1)],
        model_dir=directory,
        stop_token_ids=frozenset([tokenizer.convert_tokens_to_ids(stop)]),
        context_length=context_length,
        **options,
    )


def test_ids_and_spans_are_those_of_the_rendered_template(directory):
    (sample,) = demonstrations(directory, [{"messages": DIALOGUE, "tools": TOOLS}]).samples(0)
    rendered = AutoTokenizer.from_pretrained(directory).apply_chat_template(
        DIALOGUE[:5], tools=TOOLS, return_assistant_tokens_mask=True, return_dict=True
    )
    assert list(sample.ids) == rendered["input_ids"]
    assert list(sample.positions) == [place for place, mark in enumerate(rendered["assistant_masks"]) if mark]


def test_every_prompt_is_what_the_gateway_would_send(directory):
    (sample,) = demonstrations(directory, [{"messages": DIALOGUE, "tools": TOOLS}]).samples(0)
    chat = Chat.from_directory(directory)
    starts = [position for position in sample.positions if position - 1 not in sample.positions]
    for start, place in zip(starts, (1, 4), strict=True):
        assert list(sample.ids[:start]) == chat.encode(chat.render(DIALOGUE[:place], TOOLS, add_generation_prompt=True))
    assert sample.positions[-1] == len(sample.ids) - 1
    assert chat.decode(list(sample.ids[starts[1] : -1])) == "The way is done."


def template(directory, tmp_path, text):
    """A copy of the model directory with another chat template."""
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "chat_template.jinja").write_text(text)
    return tmp_path


FORGETFUL = """\
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
<|im_start|>assistant
{{ message.content if loop.last else '(gone)' }}<|im_end|>{{ '\\n' }}
{%- else -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>{{ '\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""


def test_a_template_that_rewrites_history_gives_one_sample_per_reply(directory, tmp_path):
    rows = [{"messages": [*DIALOGUE[:1], {"role": "assistant", "content": "a"}, DIALOGUE[-1], DIALOGUE[4]]}]
    forgetful = template(directory, tmp_path, FORGETFUL)
    first, second = demonstrations(forgetful, rows).samples(0)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert (
        tokenizer.decode(first.ids) == "<|im_start|>user\nIt is 2 left.<|im_end|>\n<|im_start|>assistant\na<|im_end|>"
    )
    assert "(gone)<|im_end|>\n<|im_start|>user\nThanks" in tokenizer.decode(second.ids)
    assert tokenizer.decode([second.ids[place] for place in second.positions]) == "The way is done.<|im_end|>"


def test_text_after_the_end_of_a_turn_is_prompt_not_reply(directory, tmp_path):
    spaced = template(
        directory, tmp_path, FORGETFUL.replace("message.content if loop.last else '(gone)'", "message.content")
    )
    rows = [{"messages": [*DIALOGUE[:1], {"role": "assistant", "content": "a"}, DIALOGUE[-1], DIALOGUE[4]]}]
    (sample,) = demonstrations(spaced, rows).samples(0)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    trained = tokenizer.decode([sample.ids[place] for place in sample.positions])
    assert trained == "a<|im_end|>The way is done.<|im_end|>"
    assert "a<|im_end|>\n<|im_start|>user" in tokenizer.decode(sample.ids)


@pytest.mark.parametrize(
    ("messages", "options", "said"),
    [
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "move", "arguments": "{dir"}}]}],
            {},
            r"demos\.jsonl:2: messages\.0: a tool call is not",
        ),
        (DIALOGUE, {"context_length": 20}, r"demos\.jsonl:2: \d+ tokens, more than the model's 20"),
        (DIALOGUE, {"stop": "<think>"}, r"demos\.jsonl:2: messages\.1: .*stop tokens \['<think>'\]"),
    ],
)
def test_a_chat_that_cannot_be_trained_is_named(directory, messages, options, said):
    rows = [{"messages": DIALOGUE}, {"messages": messages}]
    with pytest.raises(DataError, match=said):
        demonstrations(directory, rows, **options).samples(1)


def test_a_template_that_hides_replies_is_refused(directory, tmp_path):
    hiding = template(directory, tmp_path, re.sub(r"<\|im_start\|>assistant\n\{\{ mess", "{{ mess", FORGETFUL))
    with pytest.raises(DataError, match=r"messages\.1: the chat template does not show a finished reply"):
        demonstrations(hiding, [{"messages": [DIALOGUE[0], DIALOGUE[4]]}]).samples(0)
