"""Conformance tests of reward shapings: `ShapingSuite` for pytest, `check_shaping` for scripts."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

import attrs
import pytest

from agentrl_core.api.batching import Bounds
from agentrl_testing.base import ConformanceSuite
from agentrl_testing.episodes import made_up_group

if TYPE_CHECKING:
    from agentrl_core.api.batching import Shaping

_GROUPS: tuple[tuple[float, ...], ...] = ((1.0,), (0.0, 1.0), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 1.0), (0.1, -0.5, 2.0))


class ShapingSuite(ConformanceSuite):
    """Conformance tests of shapings; define the fixture `shaping`."""

    @pytest.fixture
    def shaping(self) -> Shaping:
        """Return the shaping under test."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `shaping`")

    def test_every_record_gets_one_finite_reward(self, shaping: Shaping) -> None:
        """Also for groups of one record and of equal rewards."""
        _check_finite(shaping)

    def test_the_same_group_is_shaped_the_same_twice_and_left_as_it_is(self, shaping: Shaping) -> None:
        """A resumed run must shape rewards as before."""
        _check_repeatable(shaping)

    def test_the_order_of_the_records_does_not_matter(self, shaping: Shaping) -> None:
        """Records in reverse order get the same rewards in reverse order."""
        _check_order(shaping)

    def test_it_bounds_only_what_it_is_given(self, shaping: Shaping) -> None:
        """For shapings with `bound`: it returns finite advantages of the same interactions."""
        _check_bounds(shaping)


def check_shaping(shaping: Shaping) -> None:
    """Raise AssertionError if `shaping` breaks its contract; print nothing."""
    for check in (_check_finite, _check_repeatable, _check_order, _check_bounds):
        check(shaping)


def _check_finite(shaping: Shaping) -> None:
    for rewards in _GROUPS:
        found = shaping.shape(made_up_group(rewards), rewards)
        assert len(found) == len(rewards), f"{len(rewards)} rewards got {len(found)} shaped ones"
        assert all(math.isfinite(value) for value in found), f"rewards {rewards} got {found}, not all finite"


def _check_repeatable(shaping: Shaping) -> None:
    for rewards in _GROUPS:
        group, given = made_up_group(rewards), list(rewards)
        before = copy.deepcopy(group)
        first = list(shaping.shape(group, given))
        assert (group, given) == (before, list(rewards)), f"rewards {rewards}: the shaping changed its arguments"
        assert list(shaping.shape(group, given)) == first, (
            f"rewards {rewards}: the same group got other rewards the second time"
        )


def _check_order(shaping: Shaping) -> None:
    for rewards in _GROUPS:
        group = made_up_group(rewards)
        found = list(shaping.shape(group, rewards))
        turned = list(shaping.shape(attrs.evolve(group, episodes=group.episodes[::-1]), rewards[::-1]))
        assert turned[::-1] == pytest.approx(found), (
            f"rewards {rewards}: the order of a group's records changes their rewards"
        )


def _check_bounds(shaping: Shaping) -> None:
    if not isinstance(shaping, Bounds):
        return
    group = made_up_group((0.0, 1.0))
    names = [call.id for episode in group.episodes for call in episode.interactions]
    advantages = {name: float(index) - 2.5 for index, name in enumerate(names)}
    found = shaping.bound(group, dict(advantages))
    assert found.keys() == advantages.keys(), f"advantages of {sorted(advantages)} became those of {sorted(found)}"
    assert all(math.isfinite(value) for value in found.values()), (
        f"advantages {advantages} got {dict(found)}, not all finite"
    )
