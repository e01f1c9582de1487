"""The scorer suite finds what scorers do wrong."""

import itertools

import pytest

from agentrl_core.errors import EpisodeError, PluginError
from agentrl_testing.scorers import ScorerSuite, check_scorer, score_request

pytest_plugins = ["pytester"]

EXAMPLES = [({"answer": "4", "reference": "4"}, 1.0), ({"answer": "5", "reference": "4"}, 0.0)]


def good(request):
    return float(request.answer == request.reference)


def test_a_good_scorer_passes():
    check_scorer(good, EXAMPLES)
    check_scorer(lambda answer, reference: float(answer == reference), EXAMPLES)
    check_scorer(lambda request: None, [({"answer": "4"}, None)])


def remembers():
    calls = itertools.count()
    return lambda request: good(request) if next(calls) < 4 else 0.5


def edits(request):
    request.task.data["seen"] = True
    return good(request)


def invents(request):
    return 0.0 if request.reference is None else good(request)


invents.needs_reference = True


@pytest.mark.parametrize(
    ("scorer", "error", "message"),
    [
        (lambda: 1.0, PluginError, "expected score"),
        (lambda request: "yes", EpisodeError, "expected a number"),
        (lambda request: 0.0, AssertionError, "expected 1.0, found 0.0"),
        (remembers(), AssertionError, "the same requests got"),
        (edits, AssertionError, "the scorer changed its request"),
        (invents, AssertionError, "expected no score without a reference, found 0.0"),
        (lambda request: float(request.answer[0] == request.reference), IndexError, "index out of range"),
    ],
)
def test_a_scorer_that_breaks_the_contract_is_found_out(scorer, error, message):
    with pytest.raises(error, match=message):
        check_scorer(scorer, EXAMPLES)


def test_a_scorer_that_fails_on_odd_answers_is_found_out():
    def breaks(request):
        return float(len(request.answer) < 10**5) if request.answer != "NaN" else int(request.answer)

    with pytest.raises(AssertionError, match="the answer 'NaN' made it raise ValueError: invalid literal"):
        check_scorer(breaks, [({"answer": "4", "reference": "4"}, 1.0)])


def test_a_suite_without_its_fixtures_says_which_is_missing(pytester):
    pytester.makepyfile("""
        from agentrl_testing.scorers import ScorerSuite

        class TestMine(ScorerSuite):
            pass
    """)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=7)
    result.stdout.fnmatch_lines(["*TestMine needs a fixture `scorer`*"])


def test_every_check_of_the_suite_is_a_standard_test():
    assert {name for name in vars(ScorerSuite) if name.startswith("test_")} == {
        "test_the_signature_is_one_that_scorers_have",
        "test_every_example_gets_its_value",
        "test_the_same_request_gets_the_same_value_in_any_order",
        "test_the_request_is_left_as_it_is",
        "test_an_empty_answer_is_judged",
        "test_a_missing_reference_is_no_score_where_one_is_needed",
        "test_odd_answers_are_judged_in_time",
    }


def test_requests_carry_the_row_of_their_task():
    request = score_request("4", "5", level=3)
    assert request.task.data["level"] == 3
    assert (request.answer, request.reference, request.task.answer) == ("4", "5", "5")
