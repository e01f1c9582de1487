"""Proof that a correction keeps its contract: `CorrectionSuite` for pytest, `check_correction` for scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from agentrl_core.losses.corrected import Corrected
from agentrl_core.losses.grpo import GRPO
from agentrl_testing.base import ConformanceSuite
from agentrl_testing.losses import check_contract, check_reinforce, check_slope, made_up_batch

if TYPE_CHECKING:
    from agentrl_core.api.losses import Correction


class CorrectionSuite(ConformanceSuite):
    """What every correction must do, shown around `grpo`. Give the fixture `correction`.

    One whose gradient leaves parts out on purpose says so by `stops_gradient = True`; one that changes on-policy
    gradients on purpose overrides that test with `xfail(reason=…)`.
    """

    @pytest.fixture
    def correction(self) -> Correction:
        """Return the correction under test."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `correction`")

    def test_what_it_makes_of_a_loss_is_a_loss(self, correction: Correction) -> None:
        """Shapes, masked tokens, order, padding, micro-batches, ranks: as every loss."""
        check_contract(_around(correction))

    def test_it_leaves_the_loss_that_it_is_given_as_it_is(self, correction: Correction) -> None:
        """What it returns is new; another correction may have the same output."""
        _check_pure(correction)

    def test_the_gradient_is_the_slope_of_the_value(self, correction: Correction) -> None:
        """Central differences in float64; and it is not, where the correction says that it stops the gradient."""
        check_slope(_around(correction))

    def test_on_policy_it_changes_no_gradient(self, correction: Correction) -> None:
        """With one policy for everything there is nothing to correct."""
        check_reinforce(_around(correction))


def check_correction(correction: Correction) -> None:
    """Raise AssertionError where `correction` breaks its contract; prints nothing.

    check_correction(MyCorrection(cap=2.0))
    """
    check_contract(_around(correction))
    _check_pure(correction)
    check_slope(_around(correction))


def _around(correction: Correction) -> Corrected:
    return Corrected(calculator=GRPO(), corrections=(correction,))


def _check_pure(correction: Correction) -> None:
    batch = made_up_batch(_around(correction))
    output = GRPO().loss(batch)
    terms, keep, metrics = output.per_token.clone(), output.keep.clone(), dict(output.metrics)
    correction.correct(batch, output)
    assert torch.equal(terms, output.per_token), "the correction changed per_token of the loss in place"
    assert torch.equal(keep, output.keep), "the correction changed keep of the loss in place"
    assert metrics == output.metrics, "the correction changed the metrics of the loss in place"
