import decimal
import fractions
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.errors import EpisodeError
from agentrl_core.rollout.rewards import read_reward
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
