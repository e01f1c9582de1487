import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.api.tools import ToolSpec
from agentrl_tool_middleware.arguments import Arguments, ToolArguments

KINDS = ("integer", "number", "string", "boolean", "array", "object", "null", None)
SPEC = ToolSpec(
    name="tool",
    parameters={"type": "object", "properties": {kind: {"type": kind} for kind in KINDS if kind} | {None: {}}},
)


def sent(pass_through, middleware, arguments, **options):
    return pass_through(middleware, arguments, **options).sent[0].arguments


def test_arguments_are_renamed_dropped_completed_and_listed_in_this_order(pass_through):
    changes = ToolArguments(rename={"goal": "purpose"}, drop=["debug"], defaults={"limit": 3}, lists=["url", "limit"])
    middleware = Arguments(tools={"*": ToolArguments(drop=["thought"]), "fetch": changes})
    given = {"goal": "why", "url": "http://a", "debug": 1, "thought": "hm", "limit": None}
    assert sent(pass_through, middleware, given, name="fetch") == {"purpose": "why", "url": ["http://a"], "limit": [3]}
    assert sent(pass_through, middleware, given, name="other") == {
        name: given[name] for name in given if name != "thought"
    }
    assert given["goal"] == "why"


def test_an_argument_that_is_there_is_not_replaced(pass_through):
    middleware = Arguments(tools={"tool": ToolArguments(rename={"goal": "purpose"})})
    assert sent(pass_through, middleware, {"goal": "a", "purpose": "b"}) == {"purpose": "b"}


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("integer", "3", 3), ("integer", 3.0, 3), ("integer", 3.5, 3.5), ("integer", "3.5", "3.5"),
        ("integer", True, True),
        ("number", "2.5", 2.5), ("number", "two", "two"), ("boolean", "True", True), ("boolean", "no", "no"),
        ("string", 3, "3"), ("string", True, True), ("string", "3", "3"), ("array", "[1, 2]", [1, 2]),
        ("array", "a", ["a"]), ("array", None, None), ("object", '{"a": 1}', {"a": 1}), ("object", "a", "a"),
    ],
)  # fmt: skip
def test_values_are_converted_where_that_is_unmistakable(pass_through, kind, given, expected):
    found = sent(pass_through, Arguments(convert=True), {kind: given}, spec=SPEC)[kind]
    assert (found, type(found)) == (expected, type(expected))
    assert sent(pass_through, Arguments(), {kind: given}, spec=SPEC)[kind] is given


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.sampled_from(KINDS), JSON)
def test_a_value_that_fits_stays_and_a_converted_one_can_be_sent(kind, value):
    from agentrl_tool_middleware.arguments import _converted, _fits

    found = _converted(value, {"type": kind})
    json.dumps(found)
    if kind is None or _fits(value, kind):
        assert found == value
