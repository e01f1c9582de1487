import decimal
import fractions
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.errors import EpisodeError
from agentrl_core.rollout.rewards import LARGEST_BYTES, read_reward, storable
from agentrl_core.types import Interaction


def interaction(number):
    return Interaction(
        id=f"chatcmpl-{number}",
        record_id="r",
        seq=number,
        prompt_ids=(1,),
        output_ids=(2,),
        logprobs=(0.0,),
        versions=((0, 1),),
        messages=(),
        output={"role": "assistant", "content": ""},
    )


CALLS = [interaction(number) for number in range(3)]
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


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (0.5, 0.5),
        (1, 1.0),
        (True, 1.0),
        (False, 0.0),
        (np.float32(0.25), 0.25),
        (np.float64(-1.5), -1.5),
        (np.int64(3), 3.0),
        (np.bool_(True), 1.0),
        (np.array(0.75), 0.75),
        (torch.tensor(0.5), 0.5),
        (fractions.Fraction(1, 4), 0.25),
        (decimal.Decimal("0.25"), 0.25),
    ],
)
def test_every_kind_of_number_is_a_reward(given, value):
    reward = read_reward(given, CALLS)
    assert (reward.value, type(reward.value), reward.by_interaction) == (value, float, {})


@pytest.mark.parametrize("given", [decimal.Decimal("NaN"), decimal.Decimal("sNaN"), decimal.Decimal("1e400")], ids=repr)
def test_a_decimal_must_be_finite_too(given):
    with pytest.raises(EpisodeError) as caught:
        read_reward(given, CALLS)
    assert caught.value.reason == "not_finite"


def test_none_is_no_reward():
    assert read_reward(None, CALLS) is None


def test_a_dict_names_interactions_by_id_or_turn():
    reward = read_reward({"chatcmpl-2": 1, np.int64(0): np.float32(0.5)}, CALLS)
    assert reward.by_interaction == {"chatcmpl-2": 1.0, "chatcmpl-0": 0.5}
    assert reward.value == 1.5


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan"), 10**400])
def test_a_number_that_is_not_finite_is_named(value):
    with pytest.raises(EpisodeError, match="finite") as caught:
        read_reward(value, CALLS)
    assert caught.value.reason == "not_finite"
    with pytest.raises(EpisodeError, match=r"for 1,.*finite") as caught:
        read_reward({0: 1.0, 1: value}, CALLS)
    assert caught.value.reason == "not_finite"


@pytest.mark.parametrize("value", ["1.0", [1.0], (1, 2), np.array([1.0, 2.0]), object(), 1j, {}, {0: None}])
def test_anything_else_is_refused_with_its_type(value):
    with pytest.raises(EpisodeError) as caught:
        read_reward(value, CALLS)
    assert caught.value.reason == "reward_type"


def test_an_interaction_named_twice_is_refused():
    with pytest.raises(EpisodeError, match="chatcmpl-0 twice"):
        read_reward({"chatcmpl-0": 1.0, 0: 1.0}, CALLS)


@pytest.mark.parametrize("key", ["chatcmpl-9", 3, -1, None, True, 1.0])
def test_an_unknown_interaction_is_refused_with_the_known_ones(key):
    with pytest.raises(EpisodeError, match=r"chatcmpl-1, chatcmpl-2, or a turn index from 0 to 2") as caught:
        read_reward({key: 1.0}, CALLS)
    assert caught.value.reason == "unknown_interaction"


@given(st.dictionaries(st.integers(0, 2), st.floats(-1e6, 1e6), min_size=1))
def test_a_dicts_value_is_its_sum(rewards):
    reward = read_reward(rewards, CALLS)
    assert reward.value == math.fsum(rewards.values())
    assert reward.by_interaction == {f"chatcmpl-{turn}": value for turn, value in rewards.items()}


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
