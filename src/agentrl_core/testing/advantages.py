"""Proof that an advantage estimator keeps its contract: `AdvantageSuite` for pytest, `check_advantage` for scripts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from agentrl_core.testing.base import ConformanceSuite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_core.batching.advantages import AdvantageEstimator

_GROUPS: tuple[tuple[float, ...], ...] = (
    (1.0,),
    (0.0, 1.0),
    (0.0, 0.0, 0.0, 0.0),
    (1.0, 0.0, 0.0, 1.0, 0.25, -0.5, 1.0, 3.0),
    (1e6, -1e6, 0.0),
)
_TURNS: tuple[tuple[tuple[float, ...], ...], ...] = (((1.0, 0.5), (), (0.0,)), ((0.0, 0.0), (0.0,)), ((1.0,),))


class AdvantageSuite(ConformanceSuite):
    """What every advantage estimator must do. Give the fixture `estimator`."""

    @pytest.fixture
    def estimator(self) -> AdvantageEstimator:
        """Return the estimator under test."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `estimator`")

    def test_every_record_gets_one_finite_number(self, estimator: AdvantageEstimator) -> None:
        """Groups of one, equal rewards and huge ones included."""
        _check_finite(estimator)

    def test_every_turn_gets_one_finite_number(self, estimator: AdvantageEstimator) -> None:
        """Records without a turn included."""
        _check_turns(estimator)

    def test_a_record_of_one_turn_is_treated_as_a_record(self, estimator: AdvantageEstimator) -> None:
        """Both forms agree where each record has one return."""
        _check_agreement(estimator)

    def test_the_order_of_the_records_does_not_matter(self, estimator: AdvantageEstimator) -> None:
        """Reversed rewards give reversed advantages, and equal rewards equal ones."""
        _check_order(estimator)

    def test_more_reward_never_gives_less_advantage(self, estimator: AdvantageEstimator) -> None:
        """Within a group."""
        _check_monotone(estimator)


def check_advantage(estimator: AdvantageEstimator) -> None:
    """Raise AssertionError where `estimator` breaks its contract; prints nothing."""
    for check in (_check_finite, _check_turns, _check_agreement, _check_order, _check_monotone):
        check(estimator)


def _check_finite(estimator: AdvantageEstimator) -> None:
    for rewards in _GROUPS:
        found = estimator.advantages(rewards)
        assert len(found) == len(rewards), f"{len(rewards)} rewards got {len(found)} advantages"
        assert all(math.isfinite(value) for value in found), f"rewards {rewards} got {found}"


def _check_turns(estimator: AdvantageEstimator) -> None:
    for returns in _TURNS:
        found = estimator.turn_advantages(returns)
        assert [len(turns) for turns in found] == [len(turns) for turns in returns], f"returns {returns} got {found}"
        assert all(math.isfinite(value) for turns in found for value in turns), f"returns {returns} got {found}"


def _check_agreement(estimator: AdvantageEstimator) -> None:
    for rewards in _GROUPS:
        by_turn = [turns[0] for turns in estimator.turn_advantages([[reward] for reward in rewards])]
        assert estimator.advantages(rewards) == pytest.approx(by_turn), f"rewards {rewards}"


def _check_order(estimator: AdvantageEstimator) -> None:
    for rewards in _GROUPS:
        found = estimator.advantages(rewards)
        assert list(reversed(estimator.advantages(rewards[::-1]))) == pytest.approx(found), f"rewards {rewards}"
        for value, other in _pairs(rewards, found):
            assert value[0] != other[0] or value[1] == pytest.approx(other[1]), f"rewards {rewards} got {found}"


def _check_monotone(estimator: AdvantageEstimator) -> None:
    for rewards in _GROUPS:
        found = estimator.advantages(rewards)
        for value, other in _pairs(rewards, found):
            assert value[0] <= other[0] or value[1] >= other[1], f"rewards {rewards} got {found}"


def _pairs(rewards: Sequence[float], found: Sequence[float]) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    both = list(zip(rewards, found, strict=True))
    return [(value, other) for value in both for other in both]
