"""JSON values survive documents exactly, and stay plain where MongoDB allows it."""

import json

import pytest
from bson import decode, encode
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.errors import UnstorableError
from agentrl_mongo.documents import plain, restored

_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters())
_keys = st.text(st.characters(), max_size=4) | st.sampled_from(["", "$ref", "a.b", "\0", "(json)", "\ud800"])
_json = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3), max_leaves=8
)


def round_trip(value):
    return restored(decode(encode({"value": plain(value, "it")}))["value"])


@given(_json)
def test_every_json_value_comes_back(value):
    kept = round_trip(value)
    # As text, which tells 1 from 1.0 and from true, and shows the order of keys.
    assert json.dumps(kept) == json.dumps(value)


def test_deep_nesting_comes_back():
    value = []
    for _ in range(300):
        value = [value]
    assert round_trip(value) == value


def test_text_numbers_and_tool_calls_are_plain():
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": '{"a": 1}'}}]}
    assert plain(message, "it") == message
    assert plain({"a": [1, 2.5, None, True, "è"]}, "it") == {"a": [1, 2.5, None, True, "è"]}


def test_only_the_part_that_cannot_be_plain_is_text():
    schema = {"name": "look", "parameters": {"$ref": "#/a"}}
    assert plain(schema, "it") == {"name": "look", "parameters": {"(json)": '{"$ref": "#/a"}'}}


@pytest.mark.parametrize("value", [{1}, b"bytes", object(), {"a": {"b": b"bytes"}}])
def test_values_that_are_not_json_are_refused_by_name(value):
    with pytest.raises(UnstorableError, match="task 7 cannot be stored"):
        plain(value, "task 7")
