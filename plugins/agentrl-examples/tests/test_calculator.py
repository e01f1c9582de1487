import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_examples.calculator import evaluate, same_number


@pytest.mark.parametrize(
    ("expression", "value"),
    [("1 + 2 * 3", 7), (" (1+2)*-3 ", -9), ("2 ** 10 / 4", 256), ("1e3 - .5", 999.5), ("+4", 4)],
)
def test_arithmetic_is_evaluated(expression, value):
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "1 +",
        "1 / 0",
        "9.0 ** 9999",
        "abs(1)",
        "x",
        "'a' * 9",
        "1 if 1 else 2",
        "True + 1",
        "(1",
        "1j",
        "(-8) ** .5",
    ],
)
def test_anything_else_is_refused_in_words(expression):
    with pytest.raises(ValueError, match="cannot evaluate"):
        evaluate(expression)


@pytest.mark.parametrize("expression", ["(" * 240 + "1" + ")" * 240, "(-8) ** .5", "1+" * 10_000 + "1"])
def test_no_length_or_depth_breaks_it(expression):
    with pytest.raises(ValueError, match="cannot evaluate"):
        evaluate(expression)


@given(st.text(alphabet="0123456789+-*/(). e", max_size=30))
def test_it_ends_with_a_number_or_a_value_error(expression):
    with contextlib.suppress(ValueError):
        assert isinstance(evaluate(expression), float)


@pytest.mark.parametrize(
    ("answer", "reference", "same"),
    [
        ("It is 1,234.50.", "1234.5", True),
        ("$1234.5", "1234.5", True),
        ("so 3, then 1234.5.", "1234.5", True),
        ("3, no, 1,234.50", "1234.5", True),
        ("1234.5 or 3", "1234.5", False),
        ("1.2345e3", "1234.5", True),
        ("1235-0.5", "1234.5", False),
        ("-1234.5", "1234.5", False),
        ("5-4", "4", True),
        ("(9)-4", "4", True),
        ("-.5", "-0.5", True),
        ("1e3", "1000", True),
        ("4 of 5", "4", False),
        ("four", "4", False),
        ("", "4", False),
        ("4", "four", False),
    ],
)
def test_the_last_numbers_are_compared(answer, reference, same):
    assert same_number(answer, reference) is same
