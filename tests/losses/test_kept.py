"""Log-probabilities over sampling masks against a dense softmax with minus infinity outside the mask."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core.losses.kept import KeptSets
from agentrl_core.losses.logprob import logits_logprobs, token_logprobs

H, V = 5, 13


def sets_of(masks):
    ids = [token for mask in masks for token in sorted(mask)]
    return KeptSets(counts=torch.tensor([len(mask) for mask in masks]).long(), ids=torch.tensor(ids).long())


def dense(hidden, weight, targets, temperatures, masks):
    """One token at a time: all logits, minus infinity outside the mask, softmax."""
    logprobs, entropies = [], []
    for vector, target, temperature, mask in zip(hidden, targets, temperatures, masks, strict=True):
        logits = (weight @ vector) / temperature
        outside = torch.tensor([bool(mask) and token not in mask for token in range(len(weight))])
        distribution = torch.log_softmax(logits.masked_fill(outside, -torch.inf), 0)
        inside = distribution[~outside]
        logprobs.append(distribution[target])
        entropies.append(-(inside.exp() * inside).sum())
    return torch.stack(logprobs), torch.stack(entropies)


tokens = st.lists(
    st.tuples(st.integers(0, V - 1), st.sampled_from([0.5, 1.0, 1.6]), st.none() | st.sets(st.integers(0, V - 1))),
    min_size=1,
    max_size=9,
)


def problem(drawn, seed):
    random = torch.Generator().manual_seed(seed)
    hidden = torch.randn(len(drawn), H, generator=random, dtype=torch.float64).requires_grad_()
    weight = (3 * torch.randn(V, H, generator=random, dtype=torch.float64)).requires_grad_()
    targets = torch.tensor([token for token, _, _ in drawn])
    temperatures = torch.tensor([temperature for _, temperature, _ in drawn], dtype=torch.float64)
    masks = [set() if mask is None else mask | {token} for token, _, mask in drawn]
    return hidden, weight, targets, temperatures, masks


@settings(deadline=None, max_examples=80)
@given(drawn=tokens, seed=st.integers(0, 999))
def test_values_and_gradients_are_those_of_a_dense_softmax(drawn, seed):
    hidden, weight, targets, temperatures, masks = problem(drawn, seed)
    scale = torch.linspace(-1, 2, len(drawn), dtype=torch.float64)

    def with_gradients(logprobs, entropies):
        gradients = torch.autograd.grad((logprobs * scale + entropies * scale.flip(0)).sum(), (hidden, weight))
        return logprobs.detach(), entropies.detach(), *gradients

    expected = with_gradients(*dense(hidden, weight, targets, temperatures, masks))
    options = {"temperature": temperatures, "entropy": True, "kept": sets_of(masks)}
    from_states = with_gradients(*token_logprobs(hidden, weight, targets, tile=(2, 4), **options))
    from_logits = with_gradients(*logits_logprobs(hidden @ weight.T, targets, **options))
    torch.testing.assert_close(from_states, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(from_logits, expected, rtol=1e-10, atol=1e-12)


def test_gradients_pass_autograds_own_check():
    hidden, weight, targets, temperatures, masks = problem([(1, 1.0, {2, 5}), (3, 0.5, None), (7, 1.6, {7})], 3)
    kept = sets_of(masks)
    assert torch.autograd.gradcheck(
        lambda h, w: token_logprobs(h, w, targets, temperature=temperatures, entropy=True, kept=kept), (hidden, weight)
    )


def test_a_token_that_was_certain_has_logprob_zero_and_no_gradient():
    hidden, weight, targets, _, masks = problem([(4, 1.0, {4})], 0)
    logprobs, entropies = token_logprobs(hidden, weight, targets, entropy=True, kept=sets_of(masks))
    assert (logprobs.item(), entropies.item()) == (0.0, 0.0)
    for gradient in torch.autograd.grad(logprobs.sum(), (hidden, weight)):
        assert not gradient.any()


def test_only_head_rows_of_kept_tokens_get_a_gradient():
    hidden, weight, targets, _, masks = problem([(4, 1.0, {2, 4}), (5, 1.0, {5, 9})], 0)
    logprobs, _ = token_logprobs(hidden, weight, targets, kept=sets_of(masks))
    (gradient,) = torch.autograd.grad(logprobs.sum(), (weight,))
    assert set(gradient.any(1).nonzero().flatten().tolist()) == {2, 4, 5, 9}


def test_logits_that_are_far_apart_overflow_nowhere():
    weight = torch.tensor([[4000.0], [-4000.0], [3999.0]])
    kept = sets_of([{0, 1, 2}])
    logprobs, entropies = token_logprobs(torch.ones(1, 1), weight, torch.tensor([2]), entropy=True, kept=kept)
    assert logprobs.item() == pytest.approx(-1.3132617, abs=1e-5)
    assert entropies.item() == pytest.approx(0.5822, abs=1e-4)


def test_narrow_weights_are_multiplied_in_fp32():
    hidden, weight, targets, temperatures, masks = problem([(1, 1.0, {2, 5, 6}), (3, 0.5, {0, 3})], 1)
    narrow = (hidden.detach().bfloat16(), weight.detach().bfloat16())
    found, _ = token_logprobs(*narrow, targets, temperature=temperatures, kept=sets_of(masks))
    wide = tuple(tensor.double() for tensor in narrow)
    expected, _ = dense(*wide, targets, temperatures, masks)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ([{2}, {3}], "token 4 at index 1 was sampled, but its mask has it 0 times"),
        ([{2}, {4, V}], rf"found ids in \[2, {V}\], expected \[0, {V}\)"),
    ],
)
def test_masks_that_cannot_be_right_are_refused(masks, message):
    hidden, weight, _, _, _ = problem([(2, 1.0, None), (4, 1.0, None)], 0)
    with pytest.raises(IndexError, match=message):
        token_logprobs(hidden, weight, torch.tensor([2, 4]), kept=sets_of(masks))


@given(masks=st.lists(st.sets(st.integers(0, V - 1)), max_size=8), data=st.data())
def test_a_part_has_the_masks_of_its_tokens(masks, data):
    start = data.draw(st.integers(0, len(masks)))
    order = data.draw(st.lists(st.integers(0, len(masks) - 1), max_size=9)) if masks else []
    for wanted, chosen in (
        (slice(start, None), masks[start:]),
        (torch.tensor(order).long(), [masks[i] for i in order]),
    ):
        part, expected = sets_of(masks).part(wanted), sets_of(chosen)
        assert (part.counts.tolist(), part.ids.tolist()) == (expected.counts.tolist(), expected.ids.tolist())
