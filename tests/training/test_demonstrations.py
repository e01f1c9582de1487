import json
import re

import pytest
from transformers import AutoTokenizer

from agentrl_core.chat import Chat
from agentrl_core.data.demonstrations import demonstration
from agentrl_core.errors import DataError
from agentrl_core.models.tiny import build
from agentrl_core.training.demonstrations import Demonstrations, tokenizer_digest

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


def test_a_reply_ends_with_its_first_stop_token(directory, tmp_path):
    forgets_nothing = FORGETFUL.replace("message.content if loop.last else '(gone)'", "message.content")
    doubled = template(directory, tmp_path, forgets_nothing.replace("<|im_end|>", "<|im_end|><|im_end|>"))
    (sample,) = demonstrations(doubled, [{"messages": [DIALOGUE[0], {"role": "assistant", "content": "a"}]}]).samples(0)
    trained = AutoTokenizer.from_pretrained(directory).decode([sample.ids[place] for place in sample.positions])
    assert trained == "a<|im_end|>"


@pytest.mark.parametrize(
    ("messages", "options", "said"),
    [
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "move", "arguments": "{dir"}}]}],
            {},
            r"demos\.jsonl:2: messages\.0: expected each tool call as",
        ),
        (DIALOGUE, {"context_length": 20}, r"demos\.jsonl:2: \d+ tokens, more than the model's 20"),
        (
            [{"role": "assistant", "content": "x"}],
            {},
            r"demos\.jsonl:2: messages\.0: the model's chat template refused the messages before this reply: .*empty",
        ),
        (
            [{"role": "user", "content": "\ud800"}, {"role": "assistant", "content": "x"}],
            {},
            r"demos\.jsonl:2: messages\.1: the model's chat template refused .* surrogates not allowed",
        ),
        (
            [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
                {"role": "assistant", "content": "x"},
            ],
            {},
            r"demos\.jsonl:2: messages\.0\.content: found parts of the type image_url; .* text only",
        ),
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


def test_a_template_that_raises_is_quoted_with_the_row(directory, tmp_path):
    strict = template(directory, tmp_path, "{{ raise_exception('no system here') }}")
    with pytest.raises(
        DataError, match=r"demos\.jsonl:1: messages\.1: the model's chat template refused .*no system here"
    ):
        demonstrations(strict, [{"messages": [DIALOGUE[0], DIALOGUE[4]]}]).samples(0)


def trained(sample):
    """Token id and weight of each trained token."""
    return [(sample.ids[place], weight) for place, weight in zip(sample.positions, sample.advantages, strict=True)]


TOKENS = {"ids": [5, 6, 7, 8, 9, 10, 11], "spans": [[1, 2], [3, 5, 0.5], [5, 6, 0]]}


def test_token_rows_are_trained_on_their_own_ids(directory):
    (sample,) = demonstrations(directory, [{"messages": DIALOGUE, **TOKENS}]).samples(0)
    assert list(sample.ids) == [5, 6, 7, 8, 9]  # up to the last one that is trained
    assert trained(sample) == [(6, 1.0), (8, 0.5), (9, 0.5)]
    assert sample.interactions[0] != sample.interactions[1] == sample.interactions[2]  # a span is a reply


def reference_length(directory, messages):
    """Tokens of a chat up to the end of its last reply."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    return len(tokenizer.encode(tokenizer.apply_chat_template(messages, tokenize=False).removesuffix("\n")))


def test_rows_that_are_too_long_are_left_out_on_request(directory):
    short, long = DIALOGUE[:2], DIALOGUE[:5]
    rows = [{"messages": long}, {"messages": short}, {"messages": long}, TOKENS, {"messages": short}]
    length = reference_length(directory, short)
    kept = demonstrations(directory, rows, context_length=length, overlong="drop")
    kept.check()
    alone = demonstrations(directory, [rows[1], rows[3], rows[4]], context_length=length)
    assert len(kept) == 3
    assert kept.dropped == ["demos.jsonl:1", "demos.jsonl:3"]
    assert kept.truncated == []
    for index in range(3):
        assert [trained(sample) for sample in kept.samples(index)] == [trained(one) for one in alone.samples(index)]
    assert [kept.names[kept.samples(index)[0].record] for index in range(3)] == [f"demos.jsonl:{n}" for n in (2, 4, 5)]


@pytest.mark.parametrize("overlong", ["error", "drop", "truncate"])
def test_rows_as_long_as_the_context_are_trained_whole(directory, overlong):
    length = reference_length(directory, DIALOGUE[:5])
    given = demonstrations(directory, [{"messages": DIALOGUE}], context_length=length, overlong=overlong)
    given.check()
    (sample,) = given.samples(0)
    assert len(sample.ids) == length
    assert (given.dropped, given.truncated) == ([], [])


def test_rows_are_cut_on_request_and_train_what_stands_before(directory):
    (whole,) = demonstrations(directory, [{"messages": DIALOGUE}]).samples(0)
    first_end = next(place for place in whole.positions if place + 1 not in whole.positions) + 1
    last_start = whole.positions[-1] - len([p for p in whole.positions if p >= first_end]) + 1
    first_start = whole.positions[0]
    for length, ids, dropped in [
        (len(whole.ids) - 1, len(whole.ids) - 1, False),  # in the last reply
        (last_start + 1, last_start + 1, False),  # one token of it
        (last_start, first_end, False),  # in the prompt of the last reply: up to the first one's end
        (first_end - 1, first_end - 1, False),
        (first_start + 1, first_start + 1, False),
        (first_start, 0, True),
    ]:
        cut = demonstrations(directory, [{"messages": DIALOGUE}], context_length=length, overlong="truncate")
        cut.check()
        assert (len(cut), cut.dropped, cut.truncated) == (
            (0, ["demos.jsonl:1"], []) if dropped else (1, [], ["demos.jsonl:1"])
        )
        for sample in cut.samples(0) if len(cut) else ():
            assert list(sample.ids) == list(whole.ids[:ids])
            assert list(sample.positions) == [place for place in whole.positions if place < length]
            count = len(sample.positions)
            columns = (sample.advantages, sample.interactions, sample.logprobs, sample.temperatures, sample.versions)
            assert [len(column) for column in columns] == [count] * len(columns)


def test_token_rows_are_left_out_and_cut_alike(directory):
    rows = [TOKENS, {"ids": [4, 5, 6, 7, 8, 9], "spans": [[5, 6]]}, {"ids": [4, 5], "spans": [[1, 2, 0.25]]}]
    dropping = demonstrations(directory, rows, context_length=4, overlong="drop")
    dropping.check()
    assert dropping.dropped == ["demos.jsonl:1", "demos.jsonl:2"]
    assert trained(dropping.samples(0)[0]) == [(5, 0.25)]
    cutting = demonstrations(directory, rows, context_length=4, overlong="truncate")
    cutting.check()
    assert (cutting.dropped, cutting.truncated) == (["demos.jsonl:2"], ["demos.jsonl:1"])
    (sample,) = cutting.samples(0)
    assert list(sample.ids) == [5, 6, 7, 8]
    assert trained(sample) == [(6, 1.0), (8, 0.5)]
    assert trained(cutting.samples(1)[0]) == [(5, 0.25)]


def test_each_sample_of_a_chat_is_cut_and_those_without_trained_tokens_go(directory, tmp_path):
    forgetful = template(directory, tmp_path, FORGETFUL)
    rows = [{"messages": [*DIALOGUE[:1], {"role": "assistant", "content": "a"}, DIALOGUE[-1], DIALOGUE[4]]}]
    first, second = demonstrations(forgetful, rows).samples(0)
    between = demonstrations(forgetful, rows, context_length=len(second.ids) - 1, overlong="truncate").samples(0)
    assert [list(sample.ids) for sample in between] == [list(first.ids), list(second.ids[:-1])]
    one = demonstrations(forgetful, rows, context_length=second.positions[0], overlong="truncate").samples(0)
    assert [list(sample.ids) for sample in one] == [list(first.ids)]
    dropping = demonstrations(forgetful, rows, context_length=len(second.ids) - 1, overlong="drop")
    dropping.check()
    assert len(dropping) == 0


@pytest.mark.parametrize("overlong", ["error", "drop", "truncate"])
def test_other_faults_are_no_matter_of_length(directory, overlong):
    rows = [TOKENS | {"tokenizer": "other"}, {"messages": DIALOGUE}]
    with pytest.raises(DataError) as caught:
        demonstrations(directory, rows, context_length=20, overlong=overlong).check()
    first, *others = str(caught.value).splitlines()
    assert "another tokenizer" in first
    assert [line.partition(":")[0] for line in others] == (["demos.jsonl", "data.overlong"] * (overlong == "error"))


def test_token_rows_may_be_rendered_anew(directory):
    rendered, bare = (
        demonstrations(directory, [row], exact_ids=False) for row in ({"messages": DIALOGUE, **TOKENS}, TOKENS)
    )
    (expected,) = demonstrations(directory, [{"messages": DIALOGUE}]).samples(0)
    assert rendered.samples(0)[0].ids == expected.ids
    with pytest.raises(DataError, match=r"demos\.jsonl:1: has token ids alone"):
        bare.samples(0)


def test_the_last_reply_alone_is_trained_on_request(directory):
    chat, tokens = {"messages": DIALOGUE}, {"ids": TOKENS["ids"], "spans": TOKENS["spans"][:2]}
    last = demonstrations(directory, [chat, tokens, TOKENS], train_on="last")
    (whole,) = demonstrations(directory, [chat]).samples(0)
    (sample,) = last.samples(0)
    assert sample.ids == whole.ids
    assert AutoTokenizer.from_pretrained(directory).decode([token for token, _ in trained(sample)]) == (
        "The way is done.<|im_end|>"
    )
    assert trained(last.samples(1)[0]) == [(8, 0.5), (9, 0.5)]
    with pytest.raises(DataError, match="its last span has the weight 0"):
        last.samples(2)


def test_a_reply_of_weight_zero_is_seen_and_not_trained(directory):
    weighted = [message | ({"weight": 0} if place == 1 else {}) for place, message in enumerate(DIALOGUE)]
    (sample,) = demonstrations(directory, [{"messages": weighted, "weight": 2}]).samples(0)
    (whole,) = demonstrations(directory, [{"messages": DIALOGUE}]).samples(0)
    assert sample.ids == whole.ids
    assert {weight for _, weight in trained(sample)} == {2.0}
    assert set(sample.positions) < set(whole.positions)
    assert len(set(sample.interactions)) == 1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tokenizer": "other"}, r"demos\.jsonl:1: its token ids belong to another tokenizer \(other\)"),
        (
            {"ids": [1, 2, 99999], "spans": [[1, 3]]},
            r"demos\.jsonl:1: the id 99999 is outside the model's vocabulary of \d+ tokens",
        ),
    ],
)
def test_ids_of_another_tokenizer_are_refused(directory, fields, said):
    with pytest.raises(DataError, match=said):
        demonstrations(directory, [TOKENS | fields]).check()


def test_the_digest_of_a_tokenizer_stands_for_its_vocabulary(directory, tmp_path):
    copied = template(directory, tmp_path, FORGETFUL)
    assert tokenizer_digest(copied) == tokenizer_digest(directory)
    path = copied / "tokenizer.json"
    path.write_text(path.read_text(encoding="utf-8").replace("<|im_end|>", "<|im_stop|>"), encoding="utf-8")
    assert tokenizer_digest(copied) != tokenizer_digest(directory)
