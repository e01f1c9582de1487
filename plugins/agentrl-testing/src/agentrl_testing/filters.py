"""Conformance tests of filters: `FilterSuite` for pytest, `check_filter` for scripts."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection
from typing import TYPE_CHECKING

import pytest

from agentrl_testing.base import ConformanceSuite
from agentrl_testing.episodes import made_up_group

if TYPE_CHECKING:
    from agentrl_core.api.batching import Filter
    from agentrl_core.types import Group

_GROUPS: tuple[tuple[float, ...], ...] = ((1.0,), (0.0, 1.0), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 1.0), (0.1, -0.5, 2.0))


class FilterSuite(ConformanceSuite):
    """Conformance tests of filters; define the fixture `group_filter`."""

    @pytest.fixture
    def group_filter(self) -> Filter:
        """Return the filter under test."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `group_filter`")

    def test_its_reason_is_a_stable_word(self, group_filter: Filter) -> None:
        """The reason becomes part of a metric's name."""
        _check_reason(group_filter)

    def test_it_decides_about_any_group(self, group_filter: Filter) -> None:
        """The decision is True, False or ids of the group's records, also for single records and equal rewards."""
        _check_decisions(group_filter)

    def test_the_same_group_is_decided_the_same_twice_and_left_as_it_is(self, group_filter: Filter) -> None:
        """A resumed run must decide as before."""
        _check_repeatable(group_filter)


def check_filter(group_filter: Filter) -> None:
    """Raise AssertionError if `group_filter` breaks its contract; print nothing."""
    for check in (_check_reason, _check_decisions, _check_repeatable):
        check(group_filter)


def _check_reason(group_filter: Filter) -> None:
    reason = group_filter.reason
    assert re.fullmatch(r"[a-z0-9][a-z0-9_]*", reason), f"expected a word such as zero_variance, found {reason!r}"
    assert group_filter.reason == reason, "the filter's `reason` changes between two reads"


def _check_decisions(group_filter: Filter) -> None:
    for rewards in _GROUPS:
        group, advantages = _group(rewards)
        kept = group_filter.keep(group, advantages)
        if isinstance(kept, bool):
            continue
        known = {episode.record.id for episode in group.episodes}
        ids = isinstance(kept, Collection) and not isinstance(kept, str) and known.issuperset(kept)
        assert ids, f"rewards {rewards}: expected True, False or ids of the group's records, found {kept!r}"


def _check_repeatable(group_filter: Filter) -> None:
    for rewards in _GROUPS:
        group, advantages = _group(rewards)
        before = copy.deepcopy((group, advantages))
        first = group_filter.keep(group, advantages)
        assert (group, advantages) == before, f"rewards {rewards}: the filter changed its group"
        assert group_filter.keep(group, advantages) == first, (
            f"rewards {rewards}: the filter decided differently on the same group the second time"
        )


def _group(rewards: tuple[float, ...]) -> tuple[Group, dict[str, float]]:
    """Make a group and the advantages of its interactions by id: the record's reward minus the group's mean."""
    group, mean = made_up_group(rewards), sum(rewards) / len(rewards)
    advantages = {
        item.id: (episode.record.reward or 0.0) - mean for episode in group.episodes for item in episode.interactions
    }
    return group, advantages
