"""Conformance tests of advantage estimators: `AdvantageSuite` for pytest, `check_advantage` for scripts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from agentrl_core.api.batching import StepEstimator, TrainedCall
from agentrl_testing.base import ConformanceSuite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentrl_core.api.batching import AdvantageEstimator

_GROUPS: tuple[tuple[float, ...], ...] = (
    (1.0,),
    (0.0, 1.0),
    (0.0, 0.0, 0.0, 0.0),
    (1.0, 0.0, 0.0, 1.0, 0.25, -0.5, 1.0, 3.0),
    (1e6, -1e6, 0.0),
)
_TURNS: tuple[tuple[tuple[float, ...], ...], ...] = (((1.0, 0.5), (), (0.0,)), ((0.0, 0.0), (0.0,)), ((1.0,),))
_STEPS: tuple[tuple[TrainedCall, ...], ...] = (
    (),
    (TrainedCall(advantage=0.5, tokens=3, record=0, group=0),),
    tuple(TrainedCall(advantage=0.0, tokens=3, record=index, group=index // 2) for index in range(4)),
    tuple(TrainedCall(advantage=-0.1, tokens=1 + index, record=index // 2, group=0) for index in range(6)),
    tuple(
        TrainedCall(advantage=value, tokens=tokens, record=record, group=record // 2)
        for value, tokens, record in ((0.5, 7, 0), (0.25, 1, 0), (-0.5, 5, 1), (1e6, 2, 2), (-1.0, 90, 3), (-3.0, 1, 3))
    ),
)
"""Calls of steps: no call, a single call, equal calls, records of several calls, and an outlier."""


class AdvantageSuite(ConformanceSuite):
    """Conformance tests of advantage estimators; define the fixture `estimator`."""

    @pytest.fixture
    def estimator(self) -> AdvantageEstimator:
        """Return the estimator under test."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `estimator`")

    def test_every_record_gets_one_finite_number(self, estimator: AdvantageEstimator) -> None:
        """Also for groups of one record, equal rewards and huge rewards."""
        _check_finite(estimator)

    def test_every_turn_gets_one_finite_number(self, estimator: AdvantageEstimator) -> None:
        """Also in groups with a record that has no turn."""
        _check_turns(estimator)

    def test_a_record_of_one_turn_is_treated_as_a_record(self, estimator: AdvantageEstimator) -> None:
        """Both methods agree if each record has one return."""
        _check_agreement(estimator)

    def test_the_order_of_the_records_does_not_matter(self, estimator: AdvantageEstimator) -> None:
        """Reversed rewards give reversed advantages, and equal rewards give equal advantages."""
        _check_order(estimator)

    def test_more_reward_never_gives_less_advantage(self, estimator: AdvantageEstimator) -> None:
        """The rule holds within a group."""
        _check_monotone(estimator)

    def test_every_call_of_a_step_gets_one_finite_number(self, estimator: AdvantageEstimator) -> None:
        """For estimators with `normalise`; also for steps without calls, with one call and with equal calls."""
        _check_steps(estimator)

    def test_the_order_of_a_steps_calls_changes_no_bit(self, estimator: AdvantageEstimator) -> None:
        """For estimators with `normalise`: groups arrive in any order, and a run must be reproducible."""
        _check_step_order(estimator)

    def test_normalising_a_step_keeps_the_order_within_each_group(self, estimator: AdvantageEstimator) -> None:
        """For estimators with `normalise`: a higher advantage never becomes the lower one, equal ones stay equal."""
        _check_step_monotone(estimator)


def check_advantage(estimator: AdvantageEstimator) -> None:
    """Raise AssertionError if `estimator` breaks its contract; print nothing."""
    for check in (
        _check_finite,
        _check_turns,
        _check_agreement,
        _check_order,
        _check_monotone,
        _check_steps,
        _check_step_order,
        _check_step_monotone,
    ):
        check(estimator)


def _check_finite(estimator: AdvantageEstimator) -> None:
    for rewards in _GROUPS:
        found = estimator.advantages(rewards)
        assert len(found) == len(rewards), f"{len(rewards)} rewards got {len(found)} advantages"
        assert all(math.isfinite(value) for value in found), f"rewards {rewards} got {found}, not all finite"


def _check_turns(estimator: AdvantageEstimator) -> None:
    for returns in _TURNS:
        found = estimator.turn_advantages(returns)
        assert [len(turns) for turns in found] == [len(turns) for turns in returns], (
            f"returns {returns} got {found}: expected one advantage for each turn"
        )
        assert all(math.isfinite(value) for turns in found for value in turns), (
            f"returns {returns} got {found}, not all finite"
        )


def _check_agreement(estimator: AdvantageEstimator) -> None:
    for rewards in _GROUPS:
        by_turn = [turns[0] for turns in estimator.turn_advantages([[reward] for reward in rewards])]
        assert estimator.advantages(rewards) == pytest.approx(by_turn), (
            f"rewards {rewards}: advantages() and turn_advantages() of one turn each differ"
        )


def _check_order(estimator: AdvantageEstimator) -> None:
    for rewards in _GROUPS:
        found = estimator.advantages(rewards)
        turned = list(reversed(estimator.advantages(rewards[::-1])))
        assert turned == pytest.approx(found), (
            f"rewards {rewards}: the order of a group's records changes their advantages"
        )
        for value, other in _pairs(rewards, found):
            assert value[0] != other[0] or value[1] == pytest.approx(other[1]), (
                f"rewards {rewards} got {found}: equal rewards must get equal advantages"
            )


def _check_monotone(estimator: AdvantageEstimator) -> None:
    for rewards in _GROUPS:
        found = estimator.advantages(rewards)
        for value, other in _pairs(rewards, found):
            assert value[0] <= other[0] or value[1] >= other[1], (
                f"rewards {rewards} got {found}: a higher reward must not get a lower advantage"
            )


def _check_steps(estimator: AdvantageEstimator) -> None:
    for calls, found in _normalised(estimator):
        assert len(found) == len(calls), f"{len(calls)} calls of a step got {len(found)} advantages"
        assert all(math.isfinite(value) for value in found), f"{_told(calls)} got {found}, not all finite"


def _check_step_order(estimator: AdvantageEstimator) -> None:
    for (calls, found), (_, turned) in zip(_normalised(estimator), _normalised(estimator, order=-1), strict=True):
        # Exact equality, unlike for the records of a group: sums over a step must not depend on the order of arrival.
        assert turned[::-1] == found, f"{_told(calls)}: the order of a step's calls changes their advantages"


def _check_step_monotone(estimator: AdvantageEstimator) -> None:
    for calls, found in _normalised(estimator):
        for group in {call.group for call in calls}:
            given = [call.advantage for call in calls if call.group == group]
            got = [value for call, value in zip(calls, found, strict=True) if call.group == group]
            for value, other in _pairs(given, got):
                assert value[0] < other[0] or value[1] >= other[1], (
                    f"{_told(calls)} got {found}: within a group a higher advantage must not become the lower one"
                )


def _normalised(
    estimator: AdvantageEstimator, *, order: int = 1
) -> Iterator[tuple[Sequence[TrainedCall], list[float]]]:
    """Yield each step's calls and their normalised advantages, reversed if `order` is -1.

    Yields nothing for an estimator without `normalise`.
    """
    if isinstance(estimator, StepEstimator):
        for calls in _STEPS:
            yield calls[::order], estimator.normalise(calls[::order])


def _told(calls: Sequence[TrainedCall]) -> str:
    return f"a step's advantages {', '.join(f'{call.advantage:g}' for call in calls)}"


def _pairs(rewards: Sequence[float], found: Sequence[float]) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    both = list(zip(rewards, found, strict=True))
    return [(value, other) for value in both for other in both]
