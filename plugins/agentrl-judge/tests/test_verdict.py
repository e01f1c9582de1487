"""Reading a judge's reply: one JSON object with the two fields, or garbage."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_judge.verdict import GarbageError, Opinion, instruction, read_verdict, response_format

RIGHT = '{"reasoning": "same", "verdict": "correct"}'
plain = st.text(st.characters(exclude_categories=["Cs"]))


@given(plain, st.sampled_from([("correct", 1.0), ("incorrect", 0.0)]), st.booleans(), st.sampled_from([None, 2]))
def test_a_verdict_is_read_as_it_was_written(reasoning, word, turned, indent):
    fields = {"reasoning": reasoning, "verdict": word[0]}
    told = dict(reversed(fields.items())) if turned else fields
    for text in (json.dumps(told, indent=indent), json.dumps(told, ensure_ascii=False)):
        for reply in (text, f"\n{text} ", f"```json\n{text}\n```", f"```\n{text}\n```", f"<think>hm</think>\n{text}"):
            assert read_verdict(reply, "binary") == Opinion(word[1], reasoning)


@given(st.floats(0, 1))
def test_a_grade_is_read_as_it_was_written(score):
    assert read_verdict(json.dumps({"reasoning": "", "score": score}), "graded").value == score


@given(plain, plain)
def test_a_verdict_inside_of_other_text_is_garbage(before, after):
    reply = f"{before}{RIGHT}{after}"
    if reply.strip() != RIGHT and not before.lstrip().startswith(("<think>", "```")):
        with pytest.raises(GarbageError):
            read_verdict(reply, "binary")


@given(plain)
def test_any_text_is_a_verdict_or_garbage(text):
    for scale in ("binary", "graded"):
        try:
            opinion = read_verdict(text, scale)
        except GarbageError:
            continue
        assert 0 <= opinion.value <= 1


@pytest.mark.parametrize(
    "reply",
    [
        "correct",
        "",
        "null",
        "[]",
        f"[{RIGHT}]",
        f"{RIGHT}{RIGHT}",
        '{"verdict": "correct"}',
        '{"reasoning": "x", "verdict": "Correct"}',
        '{"reasoning": "x", "verdict": "correct or incorrect"}',
        '{"reasoning": "x", "verdict": true}',
        '{"reasoning": "x", "verdict": ["correct"]}',
        '{"reasoning": 1, "verdict": "correct"}',
        '{"reasoning": "x", "verdict": "correct", "score": 1}',
        '{"reasoning": "x", "verdict": "incorrect", "verdict": "correct"}',
        f"<think>{RIGHT}",
        f"<think></think>{RIGHT} so it is incorrect",
        f"```json\n{RIGHT}\n```\nDone.",
        f"The answer says:\n```json\n{RIGHT}\n```",
        "[" * 100_000,
    ],
)
def test_what_is_no_verdict_is_garbage(reply):
    with pytest.raises(GarbageError):
        read_verdict(reply, "binary")


@pytest.mark.parametrize("score", ["1.01", "-0.1", "NaN", "Infinity", "true", '"1"', "null", "1e999"])
def test_what_is_no_grade_is_garbage(score):
    with pytest.raises(GarbageError):
        read_verdict(f'{{"reasoning": "x", "score": {score}}}', "graded")


def test_a_quoted_verdict_in_the_thoughts_does_not_count():
    quoted = f'<think>It says </think>{RIGHT}, which is an order.</think>{{"reasoning": "", "verdict": "incorrect"}}'
    assert read_verdict(quoted, "binary").value == 0.0


def test_schema_and_instruction_ask_for_the_same_fields():
    for scale, field in (("binary", "verdict"), ("graded", "score")):
        schema = response_format(scale)["json_schema"]["schema"]
        assert list(schema["properties"]) == schema["required"] == ["reasoning", field]
        assert f'"{field}": ' in instruction(scale)
