"""Conformance tests of loss calculators: `LossSuite` for pytest, `check_loss` for scripts.

All tests run in float64 on synthetic batches. Shapes: N loss tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest
import torch

from agentrl_core.api.losses import LossBatch
from agentrl_core.losses.aggregate import AggregationConfig, Denominators, aggregate
from agentrl_core.losses.contract import checked_output
from agentrl_testing.base import ConformanceSuite

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core.api.losses import LossCalculator, LossOutput

_OPPOSED = 0.5
"""Cosine from which on two gradients point into opposite directions."""
_LENGTHS = (5, 1, 7, 3, 4, 6)
"""Number of tokens of each sequence in a synthetic batch; one sequence has a single token."""


def loss_batch(*, seed: int = 0, on_policy: bool = False) -> LossBatch:
    """Make a batch of six sequences in three groups; a fifth of its tokens is masked, and lags go up to 3.

    Advantages are one number per sequence, of both signs. Off-policy, the log-ratios have a standard deviation of 0.4.
    """
    random = torch.Generator().manual_seed(seed)

    def normal(count: int, spread: float = 1.0) -> Tensor:
        return torch.randn(count, generator=random, dtype=torch.float64) * spread

    sequence = torch.repeat_interleave(torch.arange(len(_LENGTHS)), torch.tensor(_LENGTHS))
    count = len(sequence)
    logprobs = -normal(count).abs() - 0.01
    drift = normal(count, 0.0 if on_policy else 0.4)
    advantages = normal(len(_LENGTHS)).abs() * torch.tensor([1.0, -1.0] * (len(_LENGTHS) // 2))
    return LossBatch(
        logprobs=logprobs.clone().requires_grad_(),
        behaviour_logprobs=logprobs - drift,
        proximal_logprobs=logprobs - drift / 2,
        reference_logprobs=logprobs.clone() if on_policy else logprobs - normal(count, 0.2),
        entropy=normal(count).abs(),
        advantages=advantages[sequence],
        mask=(torch.arange(count) % 5 != 4).to(torch.float64),
        sequence=sequence,
        num_sequences=len(_LENGTHS),
        record=sequence,
        group=sequence // 2,
        lag=torch.zeros_like(sequence) if on_policy else torch.arange(count) % 4,
    )


class LossSuite(ConformanceSuite):
    """Conformance tests of loss calculators; define the fixture `loss`.

    The batches have only those optional fields that the loss names in its `needs`. A loss whose gradient leaves parts
    out on purpose declares `stops_gradient = True`. A loss whose terms depend on other tokens of the sequence
    declares `whole_sequences = True`. A loss that breaks another rule on purpose (cross-entropy ignores advantages)
    overrides that test with `xfail(reason=…)`.
    """

    @pytest.fixture
    def loss(self) -> LossCalculator:
        """Return the calculator under test."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `loss`")

    def test_it_returns_one_finite_term_per_token(self, loss: LossCalculator) -> None:
        """Shapes are right, values finite, `keep` is within the mask, and metrics are pairs of sum and count."""
        _check_output(loss)

    def test_masked_tokens_get_no_gradient(self, loss: LossCalculator) -> None:
        """Their gradient is exactly 0 for any input values, and these values do not change other gradients."""
        _check_masked(loss)

    def test_zero_advantage_gets_no_gradient(self, loss: LossCalculator) -> None:
        """A token with advantage 0 has gradient 0."""
        _check_zero_advantage(loss)

    def test_the_gradient_is_the_slope_of_the_value(self, loss: LossCalculator) -> None:
        """Compared with central differences in float64; must differ if the loss declares `stops_gradient`."""
        check_slope(loss)

    def test_on_policy_it_is_reinforce(self, loss: LossCalculator) -> None:
        """With every ratio at 1 the gradient is that of -A log pi / N, for each aggregation's N."""
        check_reinforce(loss)

    def test_the_order_of_tokens_does_not_matter(self, loss: LossCalculator) -> None:
        """A permuted batch gives permuted terms and gradients."""
        _check_order(loss)

    def test_padding_does_not_matter(self, loss: LossCalculator) -> None:
        """Masked tokens appended to a sequence change nothing for the others."""
        _check_padding(loss)

    def test_the_split_into_micro_batches_does_not_matter(self, loss: LossCalculator) -> None:
        """With every aggregation, the gradients of micro-batches add up to the gradient of the whole batch."""
        _check_split(loss)

    def test_the_number_of_ranks_does_not_matter(self, loss: LossCalculator) -> None:
        """The gradients of ranks that number their own sequences add up to the gradient of the whole batch."""
        _check_ranks(loss)

    def test_equal_batches_get_equal_losses(self, loss: LossCalculator) -> None:
        """The loss keeps no state and does not change its batch."""
        _check_stateless(loss)


def check_loss(loss: LossCalculator, *, stops_gradient: bool = False) -> None:
    """Raise AssertionError if `loss` breaks its contract; print nothing.

    `stops_gradient` says that parts of the loss are constants on purpose, so that its gradient is not the slope of
    its value. A calculator may declare this with an attribute of that name instead.

        check_loss(MyLoss(clip=0.2))
    """
    check_contract(loss)
    _check_zero_advantage(loss)
    check_reinforce(loss)
    check_slope(loss, stops_gradient=stops_gradient)


def check_contract(loss: LossCalculator) -> None:
    """Raise AssertionError if `loss` breaks a rule that holds for every use of ratios and advantages."""
    for check in (
        _check_output,
        _check_masked,
        _check_order,
        _check_padding,
        _check_split,
        _check_ranks,
        _check_stateless,
    ):
        check(loss)


def made_up_batch(loss: LossCalculator, *, seed: int = 0, on_policy: bool = False) -> LossBatch:
    """Make a batch like `loss_batch` that has only those optional fields which `loss` needs."""
    given = {"proximal_logprobs": "proximal", "reference_logprobs": "reference", "entropy": "entropy"}
    absent: dict[str, Any] = {field: None for field, need in given.items() if need not in loss.needs}
    return attrs.evolve(loss_batch(seed=seed, on_policy=on_policy), **absent)


def _check_output(loss: LossCalculator) -> None:
    batch = made_up_batch(loss)
    output = checked_output(loss, batch)
    for name, values in (("per_token", output.per_token), ("keep", output.keep)):
        assert values.shape == batch.mask.shape, f"{name} has shape {tuple(values.shape)}, not [N]"
        assert torch.isfinite(values).all(), f"{name} is not finite"
    assert set(output.keep.tolist()) <= {0.0, 1.0}, "keep holds something else than 0 and 1"
    assert bool((output.keep <= batch.mask).all()), "keep lets a masked token in"
    assert not output.keep.requires_grad, "keep carries a gradient"
    for name, (total, count) in output.metrics.items():
        assert total.ndim == count.ndim == 0, f"metric {name} is not a pair of scalars (sum, count)"
        assert not total.requires_grad, f"metric {name} carries a gradient"


def _check_masked(loss: LossCalculator) -> None:
    batch = made_up_batch(loss)
    inside = batch.mask > 0
    expected = _gradient(loss, batch)
    assert bool((expected[inside] != 0).any()), "no token gets a gradient"
    assert bool((expected[~inside] == 0).all()), "a masked token gets a gradient"
    # `logprobs` is separate from the others: the same garbage in both would cancel out in the ratio.
    for names in (
        ("behaviour_logprobs", "proximal_logprobs", "reference_logprobs"),
        ("logprobs",),
        ("advantages", "entropy"),
    ):
        garbage: dict[str, Any] = {
            name: torch.where(inside, value.detach(), -1e4)
            for name in names
            if (value := getattr(batch, name)) is not None
        }
        gradient = _gradient(loss, attrs.evolve(batch, **garbage))
        assert bool((gradient[~inside] == 0).all()), f"a masked token gets a gradient by its {names[0]}"
        torch.testing.assert_close(
            gradient[inside], expected[inside], msg=f"{names[0]} of masked tokens change the others' gradient"
        )


def _check_zero_advantage(loss: LossCalculator) -> None:
    batch = made_up_batch(loss)
    none = batch.sequence == 0
    gradient = _gradient(loss, attrs.evolve(batch, advantages=torch.where(none, 0.0, batch.advantages)))
    assert bool((gradient[none] == 0).all()), "a token without advantage gets a gradient"


def check_slope(loss: LossCalculator, *, stops_gradient: bool = False) -> None:
    """Raise AssertionError if the gradient is not the slope of the value, or if it is despite `stops_gradient`."""
    batch, step = made_up_batch(loss, seed=1), 1e-6
    slopes = []
    for token in range(len(batch.mask)):
        ends = []
        for sign in (1.0, -1.0):
            moved = batch.logprobs.detach().clone()
            moved[token] += sign * step
            ends.append(_total(loss.loss(attrs.evolve(batch, logprobs=moved))).item())
        slopes.append((ends[0] - ends[1]) / (2 * step))
    gradient, slope = _gradient(loss, batch), torch.tensor(slopes, dtype=torch.float64)
    if stops_gradient or getattr(loss, "stops_gradient", False):
        same = torch.allclose(gradient, slope, rtol=1e-6, atol=1e-7)
        assert not same, "the loss says that it stops the gradient, but its gradient is the slope of its value"
    else:
        torch.testing.assert_close(
            gradient,
            slope,
            rtol=1e-6,
            atol=1e-7,
            msg="the gradient with respect to the log-probs is not the slope of the loss's value; if that is on "
            "purpose, set `stops_gradient = True` on the loss",
        )


def check_reinforce(loss: LossCalculator) -> None:
    """Raise AssertionError if the on-policy gradient is not that of -A log pi / N, for each aggregation's N."""
    batch = made_up_batch(loss, on_policy=True)
    whole = -batch.advantages * batch.mask
    tokens = batch.expand(batch.seq_sum(torch.ones_like(batch.mask)))
    expected = {
        "token_mean": whole / batch.mask.sum(),
        "seq_mean_token_mean": whole / tokens / batch.num_sequences,
        "seq_mean_token_sum": whole / batch.num_sequences,
        "constant": whole / batch.num_sequences / 100,
        "agentcpm_rows": whole / tokens / batch.num_sequences,
    }
    for config in _aggregations():
        gradient = _aggregated_gradient(loss, batch, [batch.mask > -1], config)
        torch.testing.assert_close(
            gradient,
            expected[config.aggregation],
            rtol=1e-9,
            atol=1e-12,
            msg=f"aggregation {config.aggregation}: on-policy, the gradient is not that of -advantage * logprob / N",
        )


def check_sign(loss: LossCalculator) -> None:
    """Raise AssertionError if a step down the loss makes tokens less likely whose advantage is positive.

    Only a gradient that points away from REINFORCE's is a fault; some losses, such as cross-entropy, ignore advantages.
    """
    batch = made_up_batch(loss, on_policy=True)
    cosine = torch.nn.functional.cosine_similarity(_gradient(loss, batch), -batch.advantages * batch.mask, dim=0)
    assert cosine > -_OPPOSED, (
        "the sign is wrong: minimizing it makes tokens of positive advantage less likely; the loss of a token is "
        "-advantage * ratio, not advantage * ratio"
    )


def _check_order(loss: LossCalculator) -> None:
    batch = made_up_batch(loss)
    order = torch.randperm(len(batch.mask), generator=torch.Generator().manual_seed(1))
    permuted = _select(batch, order)
    told = "tokens in another order get other losses or gradients; per_token must not depend on their positions"
    torch.testing.assert_close(loss.loss(permuted).per_token, loss.loss(batch).per_token[order], msg=told)
    torch.testing.assert_close(_gradient(loss, permuted), _gradient(loss, batch)[order], msg=told)


def _check_padding(loss: LossCalculator) -> None:
    batch = made_up_batch(loss)
    count = len(batch.mask)
    padded = _select(batch, torch.cat([torch.arange(count), torch.zeros(9, dtype=torch.long)]))
    padded = attrs.evolve(padded, mask=torch.cat([batch.mask, batch.mask.new_zeros(9)]))
    torch.testing.assert_close(
        _gradient(loss, padded)[:count],
        _gradient(loss, batch),
        msg="masked tokens at the end of the batch change the gradient of the others",
    )


def _check_split(loss: LossCalculator) -> None:
    batch = made_up_batch(loss)
    whole = [batch.mask > -1]
    sequences = [batch.sequence % 3 == part for part in range(3)]
    tokens = [torch.arange(len(batch.mask)) % 2 == part for part in range(2)]
    for config in _aggregations():
        expected = _aggregated_gradient(loss, batch, whole, config)
        gradient = _aggregated_gradient(loss, batch, sequences, config)
        torch.testing.assert_close(
            gradient,
            expected,
            msg=f"aggregation {config.aggregation}: micro-batches of whole sequences do not add up to the gradient of "
            "the batch; per_token must not be divided by a count of one micro-batch, because the aggregation divides",
        )
        # `agentcpm_rows` counts a row's kept tokens within its micro-batch, so a row must not be split.
        if not getattr(loss, "whole_sequences", False) and config.aggregation != "agentcpm_rows":
            torch.testing.assert_close(
                _aggregated_gradient(loss, batch, tokens, config),
                expected,
                msg=f"{config.aggregation}: a token's loss depends on other tokens of its sequence; if that is on "
                "purpose, set `whole_sequences = True` on the loss",
            )
    _check_metrics_add_up(loss, batch, sequences)


def _check_metrics_add_up(loss: LossCalculator, batch: LossBatch, parts: list[Tensor]) -> None:
    whole = loss.loss(batch).metrics
    outputs = [loss.loss(_select(batch, part.nonzero().squeeze(1))).metrics for part in parts]
    for name, pair in whole.items():
        for index, expected in enumerate(pair):
            total = torch.stack([output[name][index] for output in outputs]).sum()
            torch.testing.assert_close(total, expected, msg=f"metric {name} of micro-batches does not add up")


def _check_ranks(loss: LossCalculator) -> None:
    batch = made_up_batch(loss)
    whole = Denominators.count(batch.mask, batch.sequence, batch.num_sequences)
    for config in _aggregations():
        leaf = batch.logprobs.detach().clone().requires_grad_()
        for rank in range(2):
            of_rank = (batch.sequence % 2 == rank).nonzero().squeeze(1)
            view = _select(attrs.evolve(batch, logprobs=leaf), of_rank)
            view = attrs.evolve(view, sequence=view.sequence // 2, num_sequences=batch.num_sequences // 2)
            own = Denominators.count(view.mask, view.sequence, view.num_sequences)
            shared = attrs.evolve(own, tokens=whole.tokens, sequences=whole.sequences)
            torch.autograd.backward(aggregate(config, view, loss.loss(view), shared))
        expected = _aggregated_gradient(loss, batch, [batch.mask > -1], config)
        torch.testing.assert_close(
            leaf.grad,
            expected,
            msg=f"aggregation {config.aggregation}: the shares of two ranks do not add up to the gradient of the batch;"
            " per_token must not depend on how many sequences are in it",
        )


def _check_stateless(loss: LossCalculator) -> None:
    batch, copy = made_up_batch(loss), made_up_batch(loss)
    first, other, again = loss.loss(batch), loss.loss(made_up_batch(loss, seed=2)), loss.loss(batch)
    assert torch.equal(first.per_token, again.per_token), "the same batch got two losses"
    assert not torch.equal(first.per_token, other.per_token), "two batches got the same loss"
    for name in ("logprobs", "behaviour_logprobs", "advantages", "mask"):
        assert torch.equal(getattr(batch, name), getattr(copy, name)), f"the loss changed {name} of its batch"


def _aggregations() -> list[AggregationConfig]:
    return [
        AggregationConfig(aggregation="token_mean"),
        AggregationConfig(aggregation="seq_mean_token_mean"),
        AggregationConfig(aggregation="seq_mean_token_sum"),
        AggregationConfig(aggregation="constant", horizon=100),
        AggregationConfig(aggregation="agentcpm_rows"),
    ]


def _total(output: LossOutput) -> Tensor:
    return (output.per_token * output.keep).sum()


def _gradient(loss: LossCalculator, batch: LossBatch) -> Tensor:
    """Return the gradient of the sum of the kept terms with respect to the log-probs, [N]."""
    leaf = batch.logprobs.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(_total(loss.loss(attrs.evolve(batch, logprobs=leaf))), leaf)
    return gradient


def _aggregated_gradient(
    loss: LossCalculator, batch: LossBatch, parts: list[Tensor], config: AggregationConfig
) -> Tensor:
    """Return the gradient of the aggregated loss, summed over micro-batches (masks over the tokens), [N]."""
    leaf = batch.logprobs.detach().clone().requires_grad_()
    denominators = Denominators.count(batch.mask, batch.sequence, batch.num_sequences)
    for part in parts:
        view = _select(attrs.evolve(batch, logprobs=leaf), part.nonzero().squeeze(1))
        torch.autograd.backward(aggregate(config, view, loss.loss(view), denominators))
    if leaf.grad is None:
        raise AssertionError("the loss has no gradient at all")
    return leaf.grad


def _select(batch: LossBatch, order: Tensor) -> LossBatch:
    """Return the batch with its tokens in another order, or with some of its tokens."""
    tensors: dict[str, Any] = {
        item.name: value[order]
        for item in attrs.fields(LossBatch)
        if torch.is_tensor(value := getattr(batch, item.name))
    }
    return attrs.evolve(batch, **tensors)
