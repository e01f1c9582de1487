"""Words that answer and reference share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.scorers.f1 import F1, normalized
from agentrl_testing import ScorerSuite
from agentrl_testing.scorers import score_request


class TestConformance(ScorerSuite):
    @pytest.fixture
    def scorer(self):
        return F1()

    @pytest.fixture
    def examples(self):
        return [
            ({"answer": "The Cat sat.", "reference": "a cat"}, 2 / 3),  # precision 1/2, recall 1
            ({"answer": "cat cat dog", "reference": "cat dog dog"}, 2 / 3),  # a word counts as often as both have it
            ({"answer": "bird", "reference": "cat"}, 0.0),
            ({"answer": "", "reference": "the"}, 1.0),
            ({"answer": "", "reference": "cat"}, 0.0),
        ]


def test_the_best_of_several_references_counts():
    request = score_request("New York City", "[]")
    request.task.data["answer"] = ["Boston", "New York", "York"]
    assert F1()(request) == pytest.approx(0.8)


def test_characters_count_where_there_are_no_spaces():
    assert F1(by="characters")(score_request("北京市", "北京")) == pytest.approx(0.8)
    assert F1()(score_request("北京市", "北京")) == 0.0


def test_punctuation_case_articles_and_spaces_do_not_count():
    assert normalized("  The «quick»,\tbrown-fox! An A. ") == "quick brownfox"


def test_the_whole_reply_can_be_judged():
    assert F1(of="reply")(score_request("cat", "answercatanswer")) == 1.0


@given(st.text(), st.text())
def test_it_is_symmetric_and_a_text_equals_itself(one, two):
    there, back = (F1()(score_request(*pair)) for pair in ((one, two), (two, one)))
    assert there == pytest.approx(back)
    assert 0 <= there <= 1
    assert F1()(score_request(one, one)) == 1.0
