"""Sampling against distributions worked out by hand, and against an independent slow one."""

import math

import pytest
import torch

from agentrl_core.engines.sampling import Draw, likeliest, sample

LOGITS = [math.log(p) for p in (0.5, 0.3, 0.15, 0.05)]
THOUSAND = [step / 1000 for step in range(1000)]


NO_ROWS, NO_TOKENS = torch.empty(0, dtype=torch.int64), torch.empty(0, 0, dtype=torch.bool)


def draw(uniform, *, temperature=1.0, top_p=1.0, top_k=0, logits=LOGITS):
    """Sample one token; return its id and logprob."""
    ids, logprobs = draw_rows([uniform], temperature=temperature, top_p=top_p, top_k=top_k, logits=logits)
    return ids[0], logprobs[0]


def draw_rows(uniforms, *, temperature=1.0, top_p=1.0, top_k=0, logits=LOGITS, allowed=None):
    """Sample one token per random number, in every row from the ids `allowed` where these are given."""
    knobs = torch.tensor([(uniform, temperature, top_p, top_k) for uniform in uniforms], dtype=torch.float64).t()
    constraint = {}
    if allowed is not None:
        tokens = torch.tensor([[token in allowed for token in range(len(logits))]] * len(uniforms))
        constraint = {"constrained": torch.arange(len(uniforms)), "allowed": tokens}
    draws = draw_of(knobs, greedy=temperature == 0, truncated=top_p < 1 or top_k > 0, **constraint)
    ids, logprobs, _ = sample(torch.tensor([logits] * len(uniforms)), draws)[0].tolist()
    return [int(token) for token in ids], logprobs


def draw_of(
    knobs, *, greedy, truncated, keeping=NO_ROWS, constrained=NO_ROWS, allowed=NO_TOKENS, telling=NO_ROWS,
    num_likeliest=0,
):  # fmt: skip
    rows = torch.arange(knobs.shape[1]) if truncated else NO_ROWS
    return Draw(knobs, greedy, rows, keeping, constrained, allowed, telling, num_likeliest)


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
    ids, _, _ = sample(torch.tensor([LOGITS] * 3), draw_of(knobs, greedy=True, truncated=True))[0].tolist()
    assert ids == [2, 0, 1]


def test_frequencies_follow_the_distribution():
    generator = torch.Generator().manual_seed(0)
    count = 20_000
    knobs = torch.ones(4, count, dtype=torch.float64)
    knobs[0] = torch.rand(count, generator=generator, dtype=torch.float64)
    knobs[3] = 0
    ids = sample(torch.tensor([LOGITS] * count), draw_of(knobs, greedy=False, truncated=False))[0][0].long()
    shares = torch.bincount(ids, minlength=4) / count
    # Four standard deviations of the largest share.
    assert shares.tolist() == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=4 * (0.25 / count) ** 0.5)


def test_tokens_that_are_not_allowed_are_never_drawn():
    ids, logprobs = draw_rows(THOUSAND, allowed={1, 3})
    assert set(ids) == {1, 3}
    # In the proportion that they have, and with the logprobs that they have without the constraint.
    assert ids.count(1) == pytest.approx(1000 * 0.3 / 0.35, abs=1)
    assert logprobs[0] == pytest.approx(math.log(0.3), abs=1e-6)
    assert logprobs[-1] == pytest.approx(math.log(0.05), abs=1e-6)


def test_allowed_tokens_that_are_all_but_impossible_are_drawn_in_proportion():
    logits = [0.0, -500.0, -500.0 - math.log(3), -700.0]
    ids, logprobs = draw_rows(THOUSAND, logits=logits, allowed={1, 2})
    assert ids.count(1) == pytest.approx(750, abs=1)
    assert ids.count(2) == pytest.approx(250, abs=1)
    assert logprobs[0] == pytest.approx(-500.0, abs=1e-3)


def test_top_p_and_top_k_keep_among_what_is_allowed():
    # 0.3 and 0.15 and 0.05 become 0.6, 0.3 and 0.1.
    assert set(draw_rows(THOUSAND, top_p=0.5, allowed={1, 2, 3})[0]) == {1}
    assert set(draw_rows(THOUSAND, top_p=0.65, allowed={1, 2, 3})[0]) == {1, 2}
    assert set(draw_rows(THOUSAND, top_k=2, allowed={1, 2, 3})[0]) == {1, 2}


def test_temperature_zero_takes_the_likeliest_that_is_allowed():
    ids, logprobs = draw_rows([0.99], temperature=0.0, allowed={2, 3})
    assert (ids, logprobs) == ([2], [pytest.approx(math.log(0.15), abs=1e-6)])


def test_a_constraint_changes_no_bit_of_the_rows_beside_it():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 300, generator=generator)
    knobs = torch.ones(4, 6, dtype=torch.float64)
    knobs[0] = torch.rand(6, generator=generator, dtype=torch.float64)
    knobs[3] = 0
    free, _ = sample(logits, draw_of(knobs, greedy=False, truncated=False))
    rows, allowed = torch.tensor([1, 4]), torch.zeros(2, 300, dtype=torch.bool)
    allowed[0, 17] = allowed[1, 299] = True
    held, _ = sample(logits, draw_of(knobs, greedy=False, truncated=False, constrained=rows, allowed=allowed))
    assert held[0, rows].tolist() == [17, 299]
    expected = torch.log_softmax(logits.double(), -1)[rows, [17, 299]]
    assert held[1, rows].tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    others = [0, 2, 3, 5]
    assert torch.equal(held[:, others], free[:, others])


def test_the_likeliest_tokens_are_told_of_the_rows_that_ask():
    knobs = torch.tensor([[0.9, 0.9, 0.9], [1.0, 0.0, 0.5], [1.0, 1.0, 1.0], [0, 0, 0]], dtype=torch.float64)
    draws = draw_of(knobs, greedy=True, truncated=False, telling=torch.tensor([1, 2]), num_likeliest=2)
    ids, logprobs = likeliest(torch.tensor([LOGITS] * 3), draws).tolist()
    assert ids == [[0, 1], [0, 1]]
    assert logprobs[0] == pytest.approx([math.log(0.5), math.log(0.3)], abs=1e-6)
    total = 0.5**2 + 0.3**2 + 0.15**2 + 0.05**2
    assert logprobs[1] == pytest.approx([math.log(0.25 / total), math.log(0.09 / total)], abs=1e-6)


def test_no_more_tokens_are_told_than_there_are():
    draws = draw_of(
        torch.ones(4, 1, dtype=torch.float64),
        greedy=False,
        truncated=False,
        telling=torch.tensor([0]),
        num_likeliest=20,
    )
    assert likeliest(torch.tensor([LOGITS]), draws).shape == (2, 1, 4)
