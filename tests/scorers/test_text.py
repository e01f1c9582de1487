"""The built-in scorers keep the scorers' contract, and judge texts and numbers as their docstrings say."""

import functools
import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.scorers.text import exact_match, last_numbers, numeric
from agentrl_testing.scorers import ScorerSuite, score_request


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
            ({"answer": "4 or 5", "reference": "5"}, 0.0),
            ({"answer": "1 2 3 4 5 6 7", "reference": "7"}, 0.0),
            ({"answer": "1, 2, 3, and 4", "reference": "4"}, 0.0),
            ({"answer": "**3** or **4**", "reference": "4"}, 0.0),
            ({"answer": "(3, 4)", "reference": "3, 4"}, 1.0),
            ({"answer": "(4, 3)", "reference": "3, 4"}, 0.0),
            ({"answer": "5, or 5.0", "reference": "5"}, 1.0),
            ({"answer": "She buys 3 + 4 = 7 apples.", "reference": "7"}, 1.0),
            ({"answer": "The area is 42 m^2.", "reference": "42"}, 1.0),
            ({"answer": "**42**", "reference": "42"}, 1.0),
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
    ("text", "numbers"),
    [
        ("42", 42.0),
        ("-7", -7.0),
        ("+7", 7.0),
        ("\N{MINUS SIGN}7.5", -7.5),
        ("x=-3", -3.0),
        ("(1)-3", 3.0),
        ("1,234,567.8", 1234567.8),
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
        (r"1\frac{1}{2}", 1.5),
        (r"\frac12", 0.5),
        (r"\dfrac{1}2", 0.5),
        (r"\frac 3{4}", 0.75),
        ("-1 1/2", -1.5),
        (r"1{,}234", 1234.0),
        (r"1\,234", 1234.0),
        ("1\N{NARROW NO-BREAK SPACE}234", 1234.0),
        ("#### 18", 18.0),
        ("10^5", 1e5),
        ("2^{10}", 1024.0),
        ("42 m^2", 42.0),
        ("42 cm2", 42.0),
        ("42 s^{-1}", 42.0),
        ("x_1 = 7", 7.0),
        ("A5", 5.0),
        ("40\n41\n42", 42.0),
        ("5 5.0", 5.0),
        ("3 - 5", (3.0, 5.0)),
        ("10-20", (10.0, 20.0)),
        ("1,2345", (1.0, 2345.0)),
        ("12,345,67", (12.0, 345.0, 67.0)),
        ("3/4/2026", (0.75, 2026.0)),
        ("3, 4, and 5", (3.0, 4.0, 5.0)),
        ("1 2 3", (1.0, 2.0, 3.0)),
        ("1/0", None),
        ("1e999", None),
        ("1 x 10^999", None),
        ("9**999", None),
        ("0**-1", None),
        ("", ()),
        ("none", ()),
    ],
)
def test_the_last_number_of_a_text_or_the_list_at_its_end(text, numbers):
    expected = numbers if isinstance(numbers, tuple) else (numbers,)
    assert last_numbers(text) == tuple(None if item is None else pytest.approx(item, rel=1e-12) for item in expected)


@given(st.text() | st.lists(st.sampled_from([*"0123456789,.^*/-$ %{}\\xe_", "\\frac{", "\n"])).map("".join))
def test_numbers_that_are_read_are_finite(text):
    assert all(number is None or math.isfinite(number) for number in last_numbers(text))


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["{}", "is ${}.", "a {}%", "1 then {} x"]))
def test_a_number_is_found_in_the_text_around_it(value, frame):
    assert last_numbers(frame.format(value)) == (value,)


@given(st.integers(min_value=-(10**15), max_value=10**15))
def test_thousands_may_be_separated(value):
    assert last_numbers(f"{value:,}") == (value,)


@given(
    st.lists(st.integers(0, 999), min_size=2, max_size=30, unique=True),
    st.sampled_from([", ", " ", " or ", "; ", " | ", ", or "]),  # not "/ ", which divides
)
def test_a_list_of_guesses_matches_none_of_them(guesses, separator):
    listing = separator.join(map(str, guesses))
    assert all(numeric(score_request(listing, str(guess))).value == 0 for guess in guesses)


def test_what_was_read_is_told():
    assert numeric(score_request("about 4.0 km", "5")).details == {"read": "4"}
    assert numeric(score_request("3 or 4", "4")).details == {"read": "3, 4"}
    assert numeric(score_request("four", "4")).details == {"read": "no number"}


@pytest.mark.parametrize("scorer", [exact_match, numeric])
def test_the_whole_reply_can_be_judged_with_its_tags(scorer):
    request = attrs.evolve(score_request("5", "4"), messages=[{"role": "assistant", "content": " 4 "}])
    given, judged = scorer(request), scorer(request, of="reply")
    assert (getattr(given, "value", given), getattr(judged, "value", judged)) == (0.0, 1.0)


@pytest.mark.parametrize("scorer", [exact_match, numeric])
def test_without_a_reference_there_is_no_score(scorer):
    assert scorer.needs_reference is True
    with pytest.raises(ValueError, match="task 'example' has no answer to compare with"):
        scorer(score_request("4", None))


def test_a_reference_without_a_number_is_no_score():
    with pytest.raises(ValueError, match=r"task 'example': expected a number in its answer, .* found 'four'"):
        numeric(score_request("4", "four"))


BLANKS = " " * 20_000


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        (f"5{BLANKS[9:]}! 7", (7.0,)),
        ("5 " + "*" * 19_990 + "! 7", (7.0,)),
        ("5" + "\n" * 19_990 + "7", (7.0,)),
        (BLANKS, ()),
        ("5 " * 9_000, (5.0,)),
    ],
)
def test_numbers_are_found_in_a_moment_whatever_a_policy_repeats(reply, found):
    """Each took from a second to hours when blanks could be shared out in many ways; the test's limit is the proof."""
    assert last_numbers(reply) == found
