"""From what a workflow returns to what each of its calls is paid: every form, on every shape, by hand."""

import decimal

import attrs
import numpy as np
import pytest

from agentrl_core.batching.credit import InsertionOrderCredit, TreeCredit
from agentrl_core.rollout.rewards import read_reward

LINE = {"a": None, "b": "a", "c": "b", "d": "c"}
SUB_AGENTS = {"a": None, "b": None, "c": None, "d": "a"}
"""A planner, two sub-agents beside it that see contexts of their own, and the planner again."""
FORK = {"a": None, "b": "a", "c": "a", "d": "b"}
"""Two goes on from one reply; the first of them goes on once more."""
RESET = {"a": None, "b": "a", "c": None, "d": "c"}
"""A context that was thrown away after two turns."""

HALF_TREE, HALF_CHAIN = TreeCredit(turn_discount=0.5), InsertionOrderCredit(turn_discount=0.5)


def paid(credit, shape, given, episode):
    """Returns of all calls, in their order."""
    calls = episode(shape)
    reward = read_reward(given, calls.interactions)
    record = attrs.evolve(calls.record, reward=reward.value, rewards=reward.by_interaction)
    shares = credit.credit(attrs.evolve(calls, record=record))
    scale = 1.0 if reward.by_interaction else reward.value
    return [shares[name] * scale for name in shape]


@pytest.mark.parametrize(
    "given", [2.0, 2, np.float32(2), np.float64(2), np.array(2.0), np.int64(2), decimal.Decimal(2)], ids=repr
)
@pytest.mark.parametrize(
    ("credit", "shape", "expected"),
    [
        (HALF_TREE, LINE, [0.25, 0.5, 1.0, 2.0]),
        (HALF_TREE, SUB_AGENTS, [1.0, 2.0, 2.0, 2.0]),  # each leaf in full
        (HALF_TREE, FORK, [0.5, 1.0, 2.0, 2.0]),  # two turns from the root to what ended last
        (HALF_TREE, RESET, [1.0, 2.0, 1.0, 2.0]),
        (HALF_CHAIN, LINE, [0.25, 0.5, 1.0, 2.0]),
        (HALF_CHAIN, SUB_AGENTS, [0.25, 0.5, 1.0, 2.0]),
        (HALF_CHAIN, FORK, [0.25, 0.5, 1.0, 2.0]),
        (HALF_CHAIN, RESET, [0.25, 0.5, 1.0, 2.0]),
        (TreeCredit(), SUB_AGENTS, [2.0] * 4),
        (InsertionOrderCredit(), RESET, [2.0] * 4),
    ],
)
def test_a_number_pays_every_call_of_the_record(credit, shape, given, expected, episode):
    assert paid(credit, shape, given, episode) == expected


@pytest.mark.parametrize("given", [True, np.bool_(True)])
def test_a_truth_is_a_reward_of_one(given, episode):
    assert paid(HALF_TREE, LINE, given, episode) == [0.125, 0.25, 0.5, 1.0]
    assert paid(HALF_TREE, LINE, not given, episode) == [0.0] * 4


@pytest.mark.parametrize(
    "given",
    [{"b": 1.0, "d": 2.0}, {1: 1, 3: 2}, {"b": np.float32(1), 3: decimal.Decimal(2)}, {np.int64(1): True, 3: 2}],
    ids=repr,
)
@pytest.mark.parametrize(
    ("credit", "shape", "expected"),
    [
        (HALF_TREE, LINE, [0.75, 1.5, 1.0, 2.0]),  # d 2, c 1, b 1 + 1/2, a 3/4
        (HALF_CHAIN, LINE, [0.75, 1.5, 1.0, 2.0]),
        (HALF_TREE, SUB_AGENTS, [1.0, 1.0, 0.0, 2.0]),  # nothing flows between contexts
        (HALF_CHAIN, SUB_AGENTS, [0.75, 1.5, 1.0, 2.0]),
        (HALF_TREE, FORK, [1.0, 2.0, 0.0, 2.0]),  # a: half of b's 2 and of c's 0
        (HALF_CHAIN, FORK, [0.75, 1.5, 1.0, 2.0]),
        (HALF_TREE, RESET, [0.5, 1.0, 1.0, 2.0]),
        (HALF_CHAIN, RESET, [0.75, 1.5, 1.0, 2.0]),
    ],
)
def test_rewards_of_turns_stay_with_their_calls_and_those_before(credit, shape, given, expected, episode):
    assert paid(credit, shape, given, episode) == expected


def test_nothing_is_left_to_the_scorer(episode):
    assert read_reward(None, episode(LINE).interactions) is None
