"""Patterns, and searches that would never end."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.scorers.regex import Regex
from agentrl_testing import ScorerSuite
from agentrl_testing.scorers import score_request


class TestConformance(ScorerSuite):
    @pytest.fixture
    def scorer(self):
        return Regex(pattern=r"\d{2,}", flags="i")

    @pytest.fixture
    def examples(self):
        return [({"answer": "it is 42"}, 1.0), ({"answer": "it is 4"}, 0.0)]


class TestConformanceOfTheTasksPattern(ScorerSuite):
    @pytest.fixture
    def scorer(self):
        return Regex(match="full")

    @pytest.fixture
    def examples(self):
        return [
            ({"answer": " yes ", "reference": "yes|yeah"}, 1.0),
            ({"answer": "oh yes", "reference": "yes|yeah"}, 0.0),
        ]


def test_a_format_is_looked_for_in_the_whole_reply():
    scorer = Regex(pattern=r"\A<answer>.*</answer>\Z", of="reply", flags="s")
    assert scorer(score_request("1\n2")) == 1.0
    assert Regex(pattern="<answer>", match="search")(score_request("1")) == 0.0


def test_each_of_several_patterns_may_match():
    request = score_request("blue", "[]")
    request.task.data["answer"] = ["red", "bl.e"]
    assert Regex()(request) == 1.0


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$"])
def test_a_search_that_would_not_end_is_stopped_without_a_score(pattern):
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match=r"took more than timeout_s = 0.1 s on 5001 characters"):
        Regex(pattern=pattern, timeout_s=0.1)(score_request("a" * 5000 + "b"))
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"pattern": "("}, "'pattern' is not a valid pattern: missing"),
        ({"flags": "q"}, "'flags': expected letters from imsx, found 'q'"),
        ({"timeout_s": 0}, "timeout_s"),
    ],
)
def test_options_are_checked(options, problem):
    with pytest.raises(ValueError, match=problem):
        Regex(**options)


def test_a_task_whose_answer_is_no_pattern_is_refused():
    with pytest.raises(ValueError, match="is not a valid pattern"):
        Regex().check_task(score_request("", "[").task)
    Regex(pattern="x").check_task(score_request("", "[").task)


@given(st.text())
def test_any_text_is_searched(answer):
    assert Regex(pattern="(?i)[a-z]+x", match="full")(score_request(answer)) in (0.0, 1.0)
