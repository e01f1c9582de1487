"""The built-in scorers keep the scorers' contract, and judge texts and numbers as their docstrings say."""

import functools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.scorers.text import exact_match, last_number, numeric
from agentrl_core.testing.scorers import ScorerSuite, score_request


class TestExactMatch(ScorerSuite):
    @pytest.fixture
    def scorer(self):
        return exact_match

    @pytest.fixture
    def examples(self):
        return [
            ({"answer": " Paris\n", "reference": "Paris "}, 1.0),
            ({"answer": "paris", "reference": "Paris"}, 0.0),
            ({"answer": "Paris, France", "reference": "Paris"}, 0.0),
            ({"answer": "", "reference": "Paris"}, 0.0),
        ]


class TestExactMatchWithoutCase(ScorerSuite):
    @pytest.fixture
    def scorer(self):
        return functools.partial(exact_match, casefold=True)

    @pytest.fixture
    def examples(self):
        return [({"answer": "STRASSE", "reference": "Straße"}, 1.0), ({"answer": "Gasse", "reference": "Straße"}, 0.0)]


class TestNumeric(ScorerSuite):
    @pytest.fixture
    def scorer(self):
        return numeric

    @pytest.fixture
    def examples(self):
        return [
            ({"answer": "so it is $1,234.50.", "reference": "1234.5"}, 1.0),
            ({"answer": "50%", "reference": "50"}, 1.0),
            ({"answer": "1/3", "reference": "0.3333333333"}, 1.0),
            ({"answer": "0.333", "reference": "1/3"}, 0.0),
            ({"answer": "4 or 5", "reference": "4"}, 0.0),
            ({"answer": "four", "reference": "4"}, 0.0),
            ({"answer": "1/0", "reference": "0"}, 0.0),
        ]


class TestNumericWithTolerance(ScorerSuite):
    @pytest.fixture
    def scorer(self):
        return functools.partial(numeric, rel=0.01, abs=0.5)

    @pytest.fixture
    def examples(self):
        return [
            ({"answer": "100.9", "reference": "100"}, 1.0),
            ({"answer": "0.4", "reference": "0"}, 1.0),
            ({"answer": "102", "reference": "100"}, 0.0),
        ]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42.0),
        ("-7", -7.0),
        ("+7", 7.0),
        ("\N{MINUS SIGN}7.5", -7.5),
        ("x=-3", -3.0),
        ("5-3", 3.0),
        ("(1)-3", 3.0),
        ("3 - 5", 5.0),
        ("10-20", 20.0),
        ("1,234,567.8", 1234567.8),
        ("1,2", 2.0),
        ("1,2345", 2345.0),
        ("12,345,67", 67.0),
        (".5", 0.5),
        ("It is 5.", 5.0),
        ("1e-3", 0.001),
        ("1.5E+3", 1500.0),
        ("2 \N{MULTIPLICATION SIGN} 10^5", 2e5),
        (r"2.5 \times 10^{-3}", 0.0025),
        ("2x10", 10.0),
        ("-$5", -5.0),
        ("$-5", -5.0),
        (r"\$1,000", 1000.0),
        ("12 %", 12.0),
        ("3/4", 0.75),
        ("-3 / 4", -0.75),
        ("1/1e400", 0.0),
        (r"\frac{1}{2}", 0.5),
        (r"-\dfrac{3}{-4}", 0.75),
        (r"\frac{-3}{4}", -0.75),
        (r"\frac{x}{4}", 4.0),
        ("#### 18", 18.0),
        ("3/4/2026", 2026.0),
        ("1/0", None),
        ("1e999", None),
        ("1 x 10^999", None),
        ("", None),
        ("none", None),
    ],
)
def test_the_last_number_of_a_text(text, number):
    assert last_number(text) == (None if number is None else pytest.approx(number, rel=1e-12))


@given(st.text())
def test_any_text_has_a_finite_last_number_or_none(text):
    number = last_number(text)
    assert number is None or math.isfinite(number)


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["{}", "is ${}.", "a {}%", "1 then {} x"]))
def test_a_number_is_found_in_the_text_around_it(value, frame):
    assert last_number(frame.format(value)) == value


@given(st.integers(min_value=-(10**15), max_value=10**15))
def test_thousands_may_be_separated(value):
    assert last_number(f"{value:,}") == value


@pytest.mark.parametrize("scorer", [exact_match, numeric])
def test_without_a_reference_there_is_no_score(scorer):
    assert scorer.needs_reference is True
    with pytest.raises(ValueError, match="task 'example' has no answer to compare with"):
        scorer(score_request("4", None))


def test_a_reference_without_a_number_is_no_score():
    with pytest.raises(ValueError, match="task 'example': its answer holds no number, numeric needs one: 'four'"):
        numeric(score_request("4", "four"))
