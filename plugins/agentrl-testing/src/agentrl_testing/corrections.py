"""Conformance tests of corrections: `CorrectionSuite` for pytest, `check_correction` for scripts."""

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
    """Conformance tests of corrections, which wrap the loss `grpo` here; define the fixture `correction`.

    A correction whose gradient leaves parts out on purpose declares `stops_gradient = True`. A correction that
    changes on-policy gradients on purpose overrides that test with `xfail(reason=…)`.
    """

    @pytest.fixture
    def correction(self) -> Correction:
        """Return the correction under test."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `correction`")

    def test_what_it_makes_of_a_loss_is_a_loss(self, correction: Correction) -> None:
        """Shapes, masked tokens, order, padding, micro-batches and ranks follow the contract of losses."""
        check_contract(_around(correction))

    def test_it_leaves_the_loss_that_it_is_given_as_it_is(self, correction: Correction) -> None:
        """The result is a new object, because another correction may use the same input."""
        _check_pure(correction)

    def test_the_gradient_is_the_slope_of_the_value(self, correction: Correction) -> None:
        """Compared with central differences in float64; must differ if the correction declares `stops_gradient`."""
        check_slope(_around(correction))

    def test_on_policy_it_changes_no_gradient(self, correction: Correction) -> None:
        """If one policy gave all log-probabilities, there is nothing to correct."""
        check_reinforce(_around(correction))


def check_correction(correction: Correction) -> None:
    """Raise AssertionError if `correction` breaks its contract; print nothing.

    check_correction(MyCorrection(cap=2.0))
    """
    check_contract(_around(correction))
    _check_pure(correction)
    check_slope(_around(correction))
    check_reinforce(_around(correction))


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
