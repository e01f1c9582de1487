"""Terms and gradients of single tokens, against the papers' formulas written out with plain numbers."""

import math

import attrs
import pytest
import torch

from agentrl_core.api.losses import LossBatch, LossOutput
from agentrl_core.losses.cispo import CISPO
from agentrl_core.losses.cross_entropy import CrossEntropy
from agentrl_core.losses.dapo import DAPO
from agentrl_core.losses.dr_grpo import DrGRPO
from agentrl_core.losses.entropy_bonus import EntropyBonus
from agentrl_core.losses.grpo import GRPO
from agentrl_core.losses.gspo import GSPO
from agentrl_core.losses.importance import MaskedIS, TruncatedIS
from agentrl_core.losses.kl import KL
from agentrl_core.losses.lag_decay import LagDecay
from agentrl_core.losses.minirl import MiniRL, MiniRLPaper
from agentrl_core.losses.ppo import PPO
from agentrl_core.losses.proximal import loglinear_proximal
from agentrl_core.losses.reinforce import RLOO, Reinforce
from agentrl_core.losses.sapo import SAPO

THETA, ADVANTAGE = -0.7, {"good": 1.5, "bad": -0.5}
LOG = math.log


def batch_of(count=1, **changes):
    """`count` tokens of one sequence, log-probs THETA, unless `changes` (numbers or lists) say otherwise."""

    def tensor(value, dtype=torch.float64):
        return torch.tensor(value if isinstance(value, list) else [value] * count, dtype=dtype)

    longs = ("lag", "sequence")
    given = {name: tensor(value, torch.long if name in longs else torch.float64) for name, value in changes.items()}
    zeros = torch.zeros(count, dtype=torch.long)
    fields = {
        "logprobs": tensor(THETA),
        "behaviour_logprobs": tensor(THETA),
        "advantages": tensor(1.0),
        "mask": tensor(1.0),
        "sequence": zeros,
        "record": zeros,
        "group": zeros,
        "lag": zeros,
    } | given
    fields["logprobs"].requires_grad_()
    return LossBatch(**fields, num_sequences=int(fields["sequence"].max()) + 1)


def gradient_of(output, wanted):
    (gradient,) = torch.autograd.grad((output.per_token * output.keep).sum(), wanted)
    return gradient.tolist()


def ratio_of(value, **changes):
    """A token whose policy has moved by the factor `value` since it was sampled."""
    return batch_of(behaviour_logprobs=THETA - LOG(value), **changes)


CLIPPED = {
    # ratio, advantage -> (value, gradient) of -min(rho A, clip(rho, 0.8, 1.2) A); the slope of rho A is rho A.
    (1.1, 1.5): (-1.65, -1.65),
    (1.3, 1.5): (-1.8, 0.0),
    (0.7, 1.5): (-1.05, -1.05),
    (1.3, -0.5): (0.65, 0.65),
    (0.7, -0.5): (0.4, 0.0),
}


@pytest.mark.parametrize("loss", [GRPO(), DrGRPO(), PPO(behaviour_weight=False), GSPO(clip=0.2, clip_higher=0.0)])
@pytest.mark.parametrize(("ratio", "advantage"), CLIPPED)
def test_a_ratio_past_its_bound_in_the_direction_of_the_advantage_is_clipped(loss, ratio, advantage):
    batch = ratio_of(ratio, advantages=advantage)
    output = loss.loss(batch)
    value, gradient = CLIPPED[ratio, advantage]
    assert output.per_token.item() == pytest.approx(value)
    assert gradient_of(output, batch.logprobs) == [pytest.approx(gradient)]


@pytest.mark.parametrize("kind", [GRPO, DrGRPO, PPO, GSPO])
def test_what_a_narrower_region_drops_is_told_as_clipped(kind):
    batch = ratio_of(1.15)
    output = kind(clip=0.2, clip_higher=0.0, importance_weight_cap_ratio=0.5).loss(batch)  # drops beyond 1.1
    assert output.keep.tolist() == [0]
    assert output.metrics["clip_fraction"][0] == 1


@pytest.mark.parametrize("kind", [GRPO, DrGRPO, PPO, GSPO])
def test_clip_higher_widens_upwards_alone(kind):
    loss = kind(clip=0.2, clip_higher=0.1)
    values = {(1.25, 1.0): -1.25, (1.4, 1.0): -1.3, (0.75, -1.0): 0.8}
    for (ratio, advantage), value in values.items():
        batch = ratio_of(ratio, advantages=advantage, proximal_logprobs=THETA - LOG(ratio))
        assert loss.loss(batch).per_token.item() == pytest.approx(value)


def test_gspos_own_bounds_are_the_papers():
    assert GSPO().loss(ratio_of(1.002, advantages=1.0)).per_token.item() == pytest.approx(-1.0004)
    assert GSPO().loss(ratio_of(0.998, advantages=-1.0)).per_token.item() == pytest.approx(0.9997)


def test_dapo_clips_rises_at_28_percent():
    assert DAPO().loss(ratio_of(1.27, advantages=2.0)).per_token.item() == pytest.approx(-2.54)
    assert DAPO().loss(ratio_of(1.4, advantages=2.0)).per_token.item() == pytest.approx(-2.56)
    assert DAPO().loss(ratio_of(0.5, advantages=-2.0)).per_token.item() == pytest.approx(1.6)


def test_gspo_takes_the_geometric_mean_of_a_sequences_ratios():
    ratios = [1.2, 0.9, 1.5, 0.6]
    batch = batch_of(
        4,
        behaviour_logprobs=[THETA - LOG(ratio) for ratio in ratios],
        advantages=[2.0, 2.0, 2.0, -1.0],
        sequence=[0, 0, 0, 1],
    )
    output = GSPO(clip=0.3, clip_higher=0.0).loss(batch)
    mean = (1.2 * 0.9 * 1.5) ** (1 / 3)
    assert output.per_token.tolist() == pytest.approx([-2 * mean, -2 * mean, -2 * mean, 0.7])
    # Each token's own log-prob has the sequence's ratio as slope; the second sequence is past its bound.
    assert gradient_of(output, batch.logprobs) == pytest.approx([-2 * mean, -2 * mean, -2 * mean, 0.0])


def test_gspos_gradient_is_not_the_reversed_one_of_agentcpm():
    """Its log pi / sg(log pi) would give 1 / log pi, below 0, where exp(log pi - sg(log pi)) gives 1."""
    batch = batch_of()
    assert gradient_of(GSPO().loss(batch), batch.logprobs) == [-1.0]


@pytest.mark.parametrize(("ratio", "weight"), [(0.4, 0.4), (1.9, 1.9), (8.0, 5.0)])
def test_cispo_bounds_the_weight_and_keeps_the_gradient(ratio, weight):
    batch = ratio_of(ratio, advantages=1.5)
    output = CISPO().loss(batch)
    assert output.per_token.item() == pytest.approx(-weight * 1.5 * THETA)
    assert gradient_of(output, batch.logprobs) == [pytest.approx(-weight * 1.5)]
    assert output.metrics["clip_fraction"][0] == (ratio > 5)


@pytest.mark.parametrize(("advantage", "tau"), [(1.5, 1.0), (-0.5, 1.05)])
def test_sapos_gate_weighs_by_four_p_times_one_minus_p(advantage, tau):
    batch = ratio_of(1.8, advantages=advantage)
    output = SAPO().loss(batch)
    p = 1 / (1 + math.exp(-tau * 0.8))
    assert output.per_token.item() == pytest.approx(-4 / tau * p * advantage)
    assert gradient_of(output, batch.logprobs) == [pytest.approx(-4 * p * (1 - p) * 1.8 * advantage)]
    assert output.metrics["gate_mean"][0].item() == pytest.approx(4 * p * (1 - p))


@pytest.mark.parametrize(
    ("ratio", "advantage", "kept"), [(1.25, 1.0, 1), (1.28, 1.0, 0), (0.79, -1.0, 0), (9.0, -1.0, 1)]
)
def test_minirl_drops_what_has_gone_too_far_and_weighs_the_rest(ratio, advantage, kept):
    batch = ratio_of(ratio, advantages=advantage)
    output = MiniRL().loss(batch)
    assert output.keep.tolist() == [kept]
    assert gradient_of(output, batch.logprobs) == [pytest.approx(-kept * ratio * advantage)]


def test_minirls_paper_masks_by_the_proximal_policy_and_truncates_the_weight_against_the_sampler():
    batch = batch_of(
        4,
        behaviour_logprobs=[THETA - LOG(weight) for weight in (1.5, 8.0, 1.5, 1.0)],
        proximal_logprobs=[THETA - LOG(ratio) for ratio in (1.1, 1.1, 1.3, 0.7)],
        advantages=[1.0, 1.0, 1.0, -1.0],
    )
    output = MiniRLPaper().loss(batch)
    assert output.keep.tolist() == [1, 1, 0, 0]
    assert gradient_of(output, batch.logprobs) == pytest.approx([-1.5, -5.0, 0.0, 0.0])
    assert output.metrics["weight_truncated_fraction"][0] == 1


@pytest.mark.parametrize(
    ("options", "weight"), [({}, 4.0), ({"behaviour_weight_cap": 3.0}, 3.0), ({"behaviour_weight": False}, 1.0)]
)
def test_decoupled_ppo_clips_around_the_proximal_policy_and_weighs_by_it(options, weight):
    batch = ratio_of(4.4, advantages=1.5, proximal_logprobs=THETA - LOG(1.1))
    output = PPO(**options).loss(batch)
    assert output.per_token.item() == pytest.approx(-weight * 1.1 * 1.5)
    assert gradient_of(output, batch.logprobs) == [pytest.approx(-weight * 1.1 * 1.5)]
    assert output.metrics["behaviour_weight_mean"][0].item() == pytest.approx(4.0)


def test_a_dual_clip_bounds_the_loss_of_a_bad_token():
    batch = ratio_of(7.0, advantages=-0.5, proximal_logprobs=THETA - LOG(7.0))
    assert PPO().loss(batch).per_token.item() == pytest.approx(3.5)
    output = PPO(dual_clip=3.0).loss(batch)
    assert output.per_token.item() == pytest.approx(1.5)
    assert gradient_of(output, batch.logprobs) == [0.0]


@pytest.mark.parametrize(
    ("loss", "weight"), [(Reinforce(), 1.0), (RLOO(), 1.0), (Reinforce(importance_weight=True), 2.5)]
)
def test_reinforce_weighs_log_likelihood_by_the_advantage(loss, weight):
    batch = ratio_of(2.5, advantages=-0.5)
    output = loss.loss(batch)
    assert output.per_token.item() == pytest.approx(weight * 0.5 * THETA)
    assert gradient_of(output, batch.logprobs) == [pytest.approx(weight * 0.5)]


def test_cross_entropy_is_minus_the_log_likelihood():
    batch = ratio_of(2.5, advantages=-0.5)
    output = CrossEntropy().loss(batch)
    assert output.per_token.item() == pytest.approx(-THETA)
    assert gradient_of(output, batch.logprobs) == [-1.0]


def test_the_proximal_policy_is_interpolated_by_versions():
    batch = batch_of(3, behaviour_logprobs=-1.7, lag=[0, 1, 4])
    # A token of the present version was sampled by the proximal policy; one of version 3 of 7 lies 4 of 5 steps back.
    assert loglinear_proximal(batch).tolist() == pytest.approx([-1.7, -1.7 + 0.5, -1.7 + 0.8])
    assert not loglinear_proximal(batch).requires_grad


def weights_of(correction, weights, **changes):
    """What a correction makes of terms of 1, with given ratios of proximal to behaviour policy."""
    batch = batch_of(
        len(weights), behaviour_logprobs=-1.0, proximal_logprobs=[LOG(weight) - 1 for weight in weights], **changes
    )
    output = LossOutput(per_token=torch.ones(len(weights), dtype=torch.float64), keep=batch.mask)
    return correction.correct(batch, output)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("token", [0.5, 2.0, 2.0, 0.5]),
        ("sequence", [2.0, 2.0, 2.0, 0.5]),
        ("geometric", [6 ** (1 / 3), 6 ** (1 / 3), 6 ** (1 / 3), 0.5]),
    ],
)
def test_truncated_weights_are_of_tokens_or_of_sequences(level, expected):
    output = weights_of(TruncatedIS(level=level), [0.5, 3.0, 4.0, 0.5], sequence=[0, 0, 0, 1])
    assert output.per_token.tolist() == pytest.approx(expected)
    assert output.keep.tolist() == [1, 1, 1, 1]


def test_masked_weights_are_kept_within_their_bounds_and_dropped_outside():
    output = weights_of(MaskedIS(low=0.5, high=2.0), [0.4, 0.6, 1.9, 2.1, 9.0])
    assert (output.per_token * output.keep).tolist() == pytest.approx([0, 0.6, 1.9, 0, 0])
    assert output.keep.tolist() == [0, 1, 1, 0, 0]
    assert output.metrics["behaviour_weight_cut_fraction"][0] == 3
    assert output.metrics["behaviour_weight_mean"][0].item() == pytest.approx(5.5)
    only = weights_of(MaskedIS(low=0.5, high=2.0, weighted=False), [0.4, 0.6, 1.9, 2.1])
    assert (only.per_token * only.keep).tolist() == [0, 1, 1, 0]


def test_masked_tokens_do_not_count_in_a_sequences_weight():
    output = weights_of(TruncatedIS(level="sequence", cap=9.0), [1.5, 2.0, 100.0], mask=[1.0, 1.0, 0.0])
    assert output.per_token[:2].tolist() == pytest.approx([3.0, 3.0])


@pytest.mark.parametrize("correction", [MaskedIS(), TruncatedIS(), LagDecay()])
def test_a_factor_brings_no_token_back_that_the_loss_dropped(correction):
    batch = batch_of(2, proximal_logprobs=THETA)
    dropped = LossOutput(per_token=batch.logprobs * 5, keep=torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert correction.correct(batch, dropped).keep.tolist() == [1, 0]


def test_a_weight_beyond_all_numbers_is_cut_and_leaves_no_nan():
    weights = [1e30] * 12
    assert weights_of(TruncatedIS(level="sequence"), weights).per_token.tolist() == [2.0] * 12
    assert weights_of(MaskedIS(level="sequence"), weights).per_token.tolist() == [0.0] * 12


def test_a_lag_halves_a_term_where_the_rate_says_so():
    batch = batch_of(4, lag=[0, 1, 2, 3], mask=[1.0, 1.0, 1.0, 0.0])
    output = LossOutput(per_token=torch.ones(4, dtype=torch.float64), keep=batch.mask)
    changed = LagDecay(rate=LOG(2)).correct(batch, output)
    assert changed.per_token[:3].tolist() == pytest.approx([1, 0.5, 0.25])
    assert changed.metrics["lag_weight_mean"][0].item() == pytest.approx(1.75)
    assert changed.metrics["lag_weight_mean"][1] == 3


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        # log pi_theta - log pi_ref = 0.4
        ("k1", 0.4, 0.4),
        ("k2", 0.08, 0.4),
        ("k3", math.exp(-0.4) + 0.4 - 1, 1 - math.exp(-0.4)),
    ],
)
def test_each_estimator_of_the_divergence_has_its_value_and_its_gradient(estimator, value, slope):
    batch = batch_of(reference_logprobs=THETA - 0.4)
    none = LossOutput(per_token=batch.logprobs * 0, keep=batch.mask)
    output = KL(beta=2.0, estimator=estimator).correct(batch, none)
    assert output.per_token.item() == pytest.approx(2 * value)
    assert gradient_of(output, batch.logprobs) == [pytest.approx(2 * slope)]
    assert output.metrics["kl_reference"][0].item() == pytest.approx(value)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_with_its_importance_weight_every_estimator_has_the_divergences_gradient(estimator):
    batch = ratio_of(1.7, reference_logprobs=THETA - 0.4)
    none = LossOutput(per_token=batch.logprobs * 0, keep=batch.mask)
    output = KL(beta=1.0, estimator=estimator, importance_weight=True).correct(batch, none)
    assert gradient_of(output, batch.logprobs) == [pytest.approx(1.7 * 0.4)]


def test_the_estimators_gradients_are_the_divergences_in_expectation():
    """Over a whole vocabulary, against autograd on the divergence itself; of k3 with its weight, without it not."""
    random = torch.Generator().manual_seed(3)
    logits = torch.randn(7, generator=random, dtype=torch.float64).requires_grad_()
    reference = torch.randn(7, generator=random, dtype=torch.float64).log_softmax(0)
    policy = logits.log_softmax(0)
    (expected,) = torch.autograd.grad((policy.exp() * (policy - reference)).sum(), logits, retain_graph=True)

    def gradient(correction):
        batch = batch_of(7, behaviour_logprobs=policy.tolist(), reference_logprobs=reference.tolist())
        batch = attrs.evolve(batch, logprobs=policy)
        none = LossOutput(per_token=policy * 0, keep=batch.mask)
        terms = correction.correct(batch, none).per_token
        (found,) = torch.autograd.grad((policy.detach().exp() * terms).sum(), logits, retain_graph=True)
        return found

    for estimator in ("k1", "k2"):
        torch.testing.assert_close(gradient(KL(beta=1.0, estimator=estimator)), expected)
    torch.testing.assert_close(gradient(KL(beta=1.0, importance_weight=True)), expected)
    assert not torch.allclose(gradient(KL(beta=1.0)), expected, rtol=0.05)


def test_a_term_of_its_own_covers_the_tokens_that_the_loss_dropped():
    batch = batch_of(2, reference_logprobs=THETA - 0.4, entropy=0.3, mask=[1.0, 0.0])
    dropped = LossOutput(per_token=batch.logprobs * 5, keep=batch.mask * 0)
    assert KL(beta=1.0, estimator="k2").correct(batch, dropped).per_token[0].item() == pytest.approx(0.08)
    assert EntropyBonus(coefficient=0.5).correct(batch, dropped).per_token[0].item() == pytest.approx(-0.15)
    for correction in (KL(), EntropyBonus()):
        assert correction.correct(batch, dropped).keep.tolist() == [1, 0]
