"""Which option an answer picks, by the rules of `choice`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.scorers.choice import Choice, _leading, _stated
from agentrl_testing import ScorerSuite
from agentrl_testing.scorers import score_request

CITIES = ["Paris", "London", "New York", "York"]


class TestConformance(ScorerSuite):
    @pytest.fixture
    def scorer(self):
        return Choice()

    @pytest.fixture
    def examples(self):
        return [
            ({"answer": "B", "reference": "B"}, 1.0),
            ({"answer": "the answer is (c)", "reference": "B"}, 0.0),
            ({"answer": "London", "reference": "B", "choices": CITIES}, 1.0),
            ({"answer": "B", "reference": "London", "choices": CITIES}, 1.0),
        ]


@pytest.mark.parametrize(
    "answer",
    [
        "B", " (b) ", "b.", "**B**", "[B]", r"$\boxed{\text{B}}$", "B) London", "B. London is right", "B: because",
        "The answer is B.", "the correct answer is: (b)", "Answer: B", "Final answer: **B**", "I choose option B",
        "First I thought of A. The answer is B", "the answer is London", "London", "london!", "It must be (B).",
        "A man is in London", "(B) because (A) is wrong", "I would say B", "the best option is B because A is wrong",
        "A: no. The answer is B", "It is in London.", "\N{FULLWIDTH LEFT PARENTHESIS} B",
    ],
)  # fmt: skip
def test_an_answer_picks_b(answer):
    assert Choice()(score_request(answer, "B", choices=CITIES)) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "", "A", "A or B", "A, B", "A B C D", "The answer is A or B", "B, or perhaps C", "Paris or London", "none",
        "The answer is A. B is wrong", "D", "Berlin", "the answer is a city",
    ],
)  # fmt: skip
def test_an_answer_does_not_pick_b(answer):
    assert Choice()(score_request(answer, "B", choices=CITIES)) == 0.0


def test_the_longer_of_two_options_that_hold_each_other_is_meant():
    assert Choice()(score_request("it is New York, surely", "C", choices=CITIES)) == 1.0
    assert Choice()(score_request("it is York, surely", "D", choices=CITIES)) == 1.0


def test_options_may_have_labels_of_their_own_and_several_may_be_right():
    request = score_request("the answer is 2", "2", choices={"1": "one thing", "2": "another"}, answer_key="2")
    assert Choice()(request) == 1.0
    assert Choice(labels="12")(score_request("2", "2")) == 1.0
    request.task.data["answer"] = ["1", "another"]
    assert Choice()(request) == 1.0


@pytest.mark.parametrize(
    ("answer", "data", "problem"),
    [
        ("E", {"choices": CITIES}, "answer: expected one of A, B, C, D, or the text of one, found 'E'"),
        ("B", {"choices": []}, "choices: expected 1 to 26 options"),
        ("B", {"choices": "ab"}, "choices: expected 1 to 26 options"),
        ("maybe", {}, "answer: expected one of A, B, C"),
    ],
)
def test_a_task_that_has_no_such_choice_is_refused(answer, data, problem):
    task = score_request("", answer, **data).task
    with pytest.raises(ValueError, match=problem):
        Choice().check_task(task)


@pytest.mark.parametrize("labels", ["", "AB-", "AA", "aA"])
def test_labels_are_letters_or_digits_that_differ(labels):
    with pytest.raises(ValueError, match="'labels': expected different letters or digits"):
        Choice(labels=labels)


@given(st.text(alphabet="ABab ().,:oranswe'\N{RIGHT SINGLE QUOTATION MARK}is\\{}$*", max_size=60) | st.text())
def test_any_text_picks_one_option_or_none(answer):
    given = [Choice()(score_request(answer, label, choices=CITIES)) for label in "ABCD"]
    assert sum(given) <= 1


@pytest.mark.parametrize("piece", ["A", "(", "the answer is ", "A, ", "\\boxed{", "A or ", " "])
def test_a_megabyte_is_judged(piece):
    assert Choice()(score_request(piece * (10**6 // len(piece)) + " B", "B")) in (0.0, 1.0)


def test_a_choice_is_read_in_a_moment_whatever_a_policy_repeats():
    """It took hours when the blanks could be shared out in many ways; the test's limit is the proof."""
    for text in (
        "The answer is" + " " * 20_000 + "unknown",
        "(" * 20_000,
        "A" + " " * 20_000 + "x",
        "answer is " * 2_000,
    ):
        assert list(_stated(text, {"A": "one", "B": "two"})) == list(_leading(text, {"A": "one", "B": "two"})) == []
