"""Conformance tests of credit assignments: `CreditSuite` for pytest, `check_credit` for scripts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from agentrl_testing.base import ConformanceSuite
from agentrl_testing.episodes import SHAPES, made_up_episode

if TYPE_CHECKING:
    from agentrl_core.api.batching import Credit


class CreditSuite(ConformanceSuite):
    """Conformance tests of credit assignments; define the fixture `credit`."""

    @pytest.fixture
    def credit(self) -> Credit:
        """Return the credit assignment under test."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `credit`")

    @pytest.mark.parametrize("shape", SHAPES)
    def test_every_interaction_has_a_finite_share(self, credit: Credit, shape: str) -> None:
        """A record's single reward is shared in every shape of conversation tree."""
        _check_shares(credit, shape)

    @pytest.mark.parametrize("shape", SHAPES)
    def test_rewards_of_interactions_become_finite_returns(self, credit: Credit, shape: str) -> None:
        """Every interaction gets a return, also an interaction without a reward."""
        _check_returns(credit, shape)

    @pytest.mark.parametrize("shape", SHAPES)
    def test_the_same_episode_gets_the_same_twice(self, credit: Credit, shape: str) -> None:
        """The credit assignment keeps no state from one episode to the next."""
        _check_repeatable(credit, shape)


def check_credit(credit: Credit) -> None:
    """Raise AssertionError if `credit` breaks its contract; print nothing."""
    for shape in SHAPES:
        for check in (_check_shares, _check_returns, _check_repeatable):
            check(credit, shape)


def _check_shares(credit: Credit, shape: str) -> None:
    episode = made_up_episode(SHAPES[shape])
    found = credit.credit(episode)
    assert set(found) == {item.id for item in episode.interactions}, (
        f"{shape}: expected a share for each interaction, found {dict(found)}"
    )
    assert all(math.isfinite(value) for value in found.values()), (
        f"{shape}: the shares are not all finite: {dict(found)}"
    )
    assert any(found.values()), f"{shape}: the reward reaches no interaction"


def _check_returns(credit: Credit, shape: str) -> None:
    episode = made_up_episode(SHAPES[shape], rewards={len(SHAPES[shape]) - 1: 0.5})
    found = credit.credit(episode)
    assert set(found) == {item.id for item in episode.interactions}, (
        f"{shape}: expected a share for each interaction, found {dict(found)}"
    )
    assert all(math.isfinite(value) for value in found.values()), (
        f"{shape}: the shares are not all finite: {dict(found)}"
    )


def _check_repeatable(credit: Credit, shape: str) -> None:
    episode = made_up_episode(SHAPES[shape])
    first = dict(credit.credit(episode))
    credit.credit(made_up_episode(SHAPES["a fork"], rewards={1: -1.0}))
    assert dict(credit.credit(episode)) == first, f"{shape}: the same episode got other shares the second time"
