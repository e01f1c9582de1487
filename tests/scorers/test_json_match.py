"""JSON found in answers, and compared."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.scorers.json_match import _NOTHING, JsonMatch, find_json
from agentrl_testing import ScorerSuite
from agentrl_testing.scorers import score_request

ORDER = '{"city": "Rome", "count": 2, "tags": ["a", "b"]}'


class TestConformance(ScorerSuite):
    @pytest.fixture
    def scorer(self):
        return JsonMatch(match="share")

    @pytest.fixture
    def examples(self):
        return [
            ({"answer": ORDER, "reference": ORDER}, 1.0),
            ({"answer": '{"city": "Rome", "count": 3, "tags": ["a"]}', "reference": ORDER}, 0.5),  # 2 of 4 values
            ({"answer": "{}", "reference": ORDER}, 0.0),
            ({"answer": "no", "reference": ORDER}, 0.0),
        ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ('"x"', "x"), ("null", None), ('so: {"a": 1}.', {"a": 1}), ("[1] and then [2, [3]]", [2, [3]]),
        ('```json\n{"a": 1}\n```\nnot [2]', {"a": 1}), ("```\n[1]\n```\n```py\nx = [3]\n```", [1]),
        ('a { brace and {"a": "}"}', {"a": "}"}), ("[1, 2", _NOTHING), ("", _NOTHING), ("NaN", _NOTHING),
        ("[NaN]", _NOTHING), ("9" * 5000, _NOTHING), ('{"a": 1e999}', {"a": float("inf")}),
    ],
)  # fmt: skip
def test_json_is_found_in_an_answer(text, value):
    assert find_json(text) == value


@pytest.mark.parametrize(
    ("match", "answer", "reference", "value"),
    [
        ("exact", '{"a": 1, "b": 2}', '{"b": 2, "a": 1}', 1), ("exact", '{"a": 1, "b": 2}', '{"a": 1}', 0),
        ("subset", '{"a": 1, "b": 2}', '{"a": 1}', 1), ("subset", '{"a": {"x": 1, "y": 2}}', '{"a": {"y": 2}}', 1),
        ("subset", '{"a": 1}', '{"a": 1, "b": null}', 0), ("exact", "1", "1.0", 1), ("exact", "1", "true", 0),
        ("exact", "0.30000000001", "0.3", 1), ("exact", "0.31", "0.3", 0), ("exact", '"1"', "1", 0),
        ("exact", "[1, 2]", "[2, 1]", 0), ("exact", "[1]", "[1, 2]", 0), ("share", "[1, 5]", "[1, 2]", 0.5),
        ("share", "[]", "[]", 1), ("share", '{"a": []}', '{"a": {}}', 0), ("exact", "null", "null", 1),
        ("exact", "1" + "0" * 400, "1" + "0" * 400, 1), ("exact", "1" + "0" * 400, "1", 0),
    ],
)  # fmt: skip
def test_json_is_compared(match, answer, reference, value):
    assert JsonMatch(match=match)(score_request(answer, reference)) == value


def test_a_list_may_hold_several_references():
    assert JsonMatch(any_of=True)(score_request('{"a": 2}', '[{"a": 1}, {"a": 2}]')) == 1.0
    assert JsonMatch()(score_request('{"a": 2}', '[{"a": 1}, {"a": 2}]')) == 0.0


def test_numbers_have_a_tolerance():
    assert JsonMatch(abs=0.5)(score_request("[1.4]", "[1]")) == 1.0


@pytest.mark.parametrize(
    ("options", "answer", "problem"),
    [({}, "{a: 1}", "answer: expected JSON"), ({"any_of": True}, "{}", "answer: expected a list of references")],
)
def test_a_task_whose_answer_is_not_json_is_refused(options, answer, problem):
    with pytest.raises(ValueError, match=problem):
        JsonMatch(**options).check_task(score_request("", answer).task)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(values, values, st.sampled_from(["exact", "subset", "share"]))
def test_a_value_equals_itself_whatever_stands_around_it(value, other, match):
    text = json.dumps(value)
    assert JsonMatch(match=match)(score_request(f"```json\n{text}\n```", text)) == 1.0
    assert 0.0 <= JsonMatch(match=match)(score_request(json.dumps(other), text)) <= 1.0


@given(st.text(alphabet='{}[]",:1a\\` \n') | st.text())
def test_what_is_found_in_any_text_is_json(text):
    found = find_json(text)
    assert found is _NOTHING or json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    "piece", ["[", "{", '{"a":', "[1,", "```json\n", "[1] ", "9", '["a', "{ {", '{"', "\\boxed{", '{"a" ']
)
def test_a_megabyte_is_searched_to_an_end(piece):
    found = find_json("x" + piece * (10**6 // len(piece)))
    assert found is _NOTHING or found == [1]
