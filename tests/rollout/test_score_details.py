"""Whatever a scorer tells can be stored, and is no larger than it may be."""

import json

from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.rollout.score_details import LARGEST_BYTES, storable

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
anything = st.recursive(
    json_values | st.binary() | st.complex_numbers() | st.floats() | st.just(object()),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(st.integers(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_json_is_kept_as_it_is(details):
    assert storable(details) == details


@given(st.dictionaries(st.text(), anything, max_size=4) | anything, st.integers(1, 40))
def test_anything_becomes_json_of_a_bounded_size(details, times):
    kept = storable({"many": [details] * times, "long": "€" * 3_000 * times})
    assert len(json.dumps(kept, allow_nan=False)) <= LARGEST_BYTES


def test_a_long_text_keeps_its_ends():
    kept = storable({"reply": "a" * 30_000 + "z" * 30_000})["reply"]
    assert kept.startswith("a" * 10_000 + " […40000 characters…] ")
    assert kept.endswith("z" * 10_000)


def test_what_cannot_be_shown_is_told_by_its_type():
    class Shy:
        def __str__(self):
            raise RuntimeError

    assert storable({"x": Shy()}) == {"x": "(Shy, whose text cannot be shown: RuntimeError)"}
    assert storable("a text") == {"details": "a text"}


def test_what_holds_itself_ends():
    loop = {}
    loop["loop"] = loop
    assert "loop" in storable(loop)


def test_texts_are_cleaned():
    assert storable({"sk-1": ["sk-1!"]}, lambda text: text.replace("sk-1", "…")) == {"…": ["…!"]}
