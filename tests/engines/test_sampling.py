"""Sampling against distributions worked out by hand, and against an independent slow one."""

import math

import pytest
import torch

from agentrl_core.engines.sampling import sample

LOGITS = [math.log(p) for p in (0.5, 0.3, 0.15, 0.05)]
THOUSAND = [step / 1000 for step in range(1000)]


def draw(uniform, *, temperature=1.0, top_p=1.0, top_k=0, logits=LOGITS):
    """Sample one token; return its id and logprob."""
    ids, logprobs = draw_rows([uniform], temperature=temperature, top_p=top_p, top_k=top_k, logits=logits)
    return ids[0], logprobs[0]


def draw_rows(uniforms, *, temperature=1.0, top_p=1.0, top_k=0, logits=LOGITS):
    """Sample one token per random number."""
    knobs = torch.tensor([(uniform, temperature, top_p, top_k) for uniform in uniforms], dtype=torch.float64).t()
    truncated = top_p < 1 or top_k > 0
    ids, logprobs = sample(torch.tensor([logits] * len(uniforms)), knobs, temperature == 0, truncated).tolist()
    return [int(token) for token in ids], logprobs


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.4999, 0), (0.5001, 1), (0.7999, 1), (0.8001, 2), (0.9501, 3), (0.999999, 3)]
)
def test_the_random_number_picks_by_cumulative_probability(uniform, token):
    expected = LOGITS[token]
    assert draw(uniform) == (token, pytest.approx(expected, abs=1e-6))


def test_temperature_scales_before_the_softmax():
    squared = [math.exp(2 * logit) for logit in LOGITS]
    token, logprob = draw(0.0, temperature=0.5)
    assert (token, logprob) == (0, pytest.approx(math.log(squared[0] / sum(squared)), abs=1e-6))


def test_temperature_zero_takes_the_likeliest_and_its_unscaled_logprob():
    assert draw(0.99, temperature=0.0) == (0, pytest.approx(math.log(0.5), abs=1e-6))


@pytest.mark.parametrize(("top_p", "tokens"), [(0.4, {0}), (0.5, {0}), (0.6, {0, 1}), (0.81, {0, 1, 2}), (1e-9, {0})])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p, tokens):
    assert set(draw_rows(THOUSAND, top_p=top_p)[0]) == tokens


@pytest.mark.parametrize(("top_k", "tokens"), [(1, {0}), (2, {0, 1}), (9, {0, 1, 2, 3})])
def test_top_k_keeps_the_likeliest(top_k, tokens):
    assert set(draw_rows(THOUSAND, top_k=top_k)[0]) == tokens


def test_logprobs_are_of_the_distribution_before_top_p_and_top_k():
    assert draw(0.9, top_k=2, top_p=0.9) == (1, pytest.approx(math.log(0.3), abs=1e-6))


def test_truncation_keeps_proportions():
    draws, _ = draw_rows(THOUSAND, top_k=2)
    assert draws.count(0) == pytest.approx(1000 * 0.5 / 0.8, abs=1)


def test_a_token_of_probability_zero_is_never_drawn():
    logits = [-math.inf, 0.0, -math.inf, 0.0, -math.inf]
    assert set(draw_rows(THOUSAND, logits=logits)[0]) == {1, 3}
    assert draw(1 - 2**-53, logits=logits)[0] == 3


def test_rows_have_their_own_parameters():
    knobs = torch.tensor([[0.9, 0.9, 0.9], [1.0, 0.0, 1.0], [1.0, 1.0, 0.6], [0, 0, 0]], dtype=torch.float64)
    ids, _ = sample(torch.tensor([LOGITS] * 3), knobs, True, True).tolist()
    assert ids == [2, 0, 1]


def test_frequencies_follow_the_distribution():
    generator = torch.Generator().manual_seed(0)
    count = 20_000
    knobs = torch.ones(4, count, dtype=torch.float64)
    knobs[0] = torch.rand(count, generator=generator, dtype=torch.float64)
    knobs[3] = 0
    ids = sample(torch.tensor([LOGITS] * count), knobs, False, False)[0].long()
    shares = torch.bincount(ids, minlength=4) / count
    # Four standard deviations of the largest share.
    assert shares.tolist() == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=4 * (0.25 / count) ** 0.5)
