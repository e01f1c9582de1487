"""The calculator: right values, exact integers, and no expression that takes long or runs code."""

import asyncio
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.mcpserver.exceptions import ToolError

from agentrl_tool_servers.calculator import calculate, server


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("2^3 + 1", 9),
        ("7 // 2 + 7 % 4", 6),
        ("-2**2", -4),
        ("1/4", 0.25),
        ("2**100", 2**100),
        ("(-1) ** 100001", -1),
        ("sqrt(16) + max(1, 2, 3)", 7.0),
        ("factorial(20)", math.factorial(20)),
        ("comb(5, 2)", 10),
        ("gcd(12, 18)", 6),
        ("round(2.567, 1)", 2.6),
        ("round(2.4)", 2),
        ("6 × 7 ÷ 2 − 1", 20.0),  # noqa: RUF001
        (" pi ", math.pi),
    ],
)
def test_values(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("9**9**9", "too large"),
        ("9**9**9**9", "too large"),
        ("10**4000 * 10**4000", "too large"),
        ("2.0**1e9", "too large"),
        ("factorial(10**9)", "expected a whole number"),
        ("comb(10**9, 10**8)", "expected whole numbers"),
        ("round(1, 10**9)", "number of places"),
        ("1/0", "division by zero"),
        ("(-8)**0.5", "no real value"),
        ("sqrt(-1)", "expected a nonnegative input|math domain error"),
        ("1e308*10", "not a finite number"),
        ("__import__('os').system('true')", "not arithmetic"),
        ("(1).__class__", "not arithmetic"),
        ("[1][0]", "not arithmetic"),
        ("'a'*10**9", "not arithmetic"),
        ("lambda: 1", "not arithmetic"),
        ("True + 1", "not arithmetic"),
        ("1 if 1 else 2", "not arithmetic"),
        ("x := 1", "not an arithmetic expression"),
        ("sqrt(x=2)", "not arithmetic"),
        ("sqrt(1, 2)", "exactly one argument"),
        ("max()", "max"),
        ("", "not an arithmetic expression"),
        ("1 +", "not an arithmetic expression"),
        ("\0", "not an arithmetic expression"),
        ("1" * 2000, "characters"),
        ("-" * 900 + "1", "nested|not an arithmetic"),
        ("(" * 400 + "1" + ")" * 400, "not an arithmetic expression"),
        ("1+" * 400 + "1", "nested"),
    ],
)
def test_refused_expressions_give_a_reason_and_take_no_time(expression, reason):
    begin = time.process_time()
    with pytest.raises(ToolError, match=reason):
        calculate(expression)
    assert time.process_time() - begin < 1


@given(st.text("0123456789+-*/%.()e^ ,sqrtminmaxpi", max_size=60))
def test_any_text_is_a_finite_number_or_a_reason(expression):
    try:
        value = calculate(expression)
    except ToolError as error:
        assert str(error)  # noqa: PT017 - either is fine
    else:
        assert isinstance(value, int) or math.isfinite(value)


def test_the_tool_may_be_repeated_and_reports_errors(connect):
    async def scenario():
        async with connect(server()) as call:
            (tool,) = (await call.client.list_tools()).tools
            assert tool.annotations.read_only_hint
            assert tool.annotations.idempotent_hint
            assert await call("calculate", expression="6*7") == ("42", False)
            text, is_error = await call("calculate", expression="1/0")
            assert is_error
            assert "division by zero" in text

    asyncio.run(scenario())
