import pytest
import torch

from agentrl_core.losses.logprob import logits_logprobs, token_logprobs

N, H, V = 7, 5, 11


def problem(dtype=torch.float64, seed=0):
    random = torch.Generator().manual_seed(seed)
    hidden = torch.randn(N, H, generator=random, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(V, H, generator=random, dtype=torch.float64).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(V, (N,), generator=random)


def by_definition(hidden, weight, targets, temperature):
    """One token at a time, by the formulas."""
    logprobs, entropies = [], []
    temperatures = torch.as_tensor(temperature).expand(len(targets)).double()
    for vector, target, divisor in zip(hidden, targets, temperatures, strict=True):
        scores = torch.exp((weight @ vector) / divisor)
        probs = scores / scores.sum()
        logprobs.append(torch.log(probs[target]))
        entropies.append(-(probs * torch.log(probs)).sum())
    return torch.stack(logprobs), torch.stack(entropies)


@pytest.mark.parametrize("rows_at_once", [1, 3, N, 100])
@pytest.mark.parametrize(
    "temperature", [1.0, 0.75, torch.linspace(0.5, 2, N, dtype=torch.float64)], ids=["one", "cooler", "each its own"]
)
def test_values_and_gradients_are_those_of_the_definition(rows_at_once, temperature):
    hidden, weight, targets = problem()
    scale = torch.linspace(-1, 2, N, dtype=torch.float64)
    logprobs, entropies = token_logprobs(
        hidden, weight, targets, temperature=temperature, entropy=True, tile=(rows_at_once, 4)
    )
    found = torch.autograd.grad((logprobs * scale + entropies * scale.flip(0)).sum(), (hidden, weight))
    expected_logprobs, expected_entropies = by_definition(hidden, weight, targets, temperature)
    expected = torch.autograd.grad(
        (expected_logprobs * scale + expected_entropies * scale.flip(0)).sum(), (hidden, weight)
    )
    torch.testing.assert_close((logprobs, entropies), (expected_logprobs, expected_entropies), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_gradients_pass_autograds_own_check():
    hidden, weight, targets = problem(seed=3)
    assert torch.autograd.gradcheck(
        lambda h, w: token_logprobs(h, w, targets, temperature=0.9, entropy=True, tile=(2, 3)),
        (hidden, weight),
    )


def test_without_entropy_there_is_none_and_the_gradient_is_the_same():
    hidden, weight, targets = problem()
    alone, nothing = token_logprobs(hidden, weight, targets)
    both, _ = token_logprobs(hidden, weight, targets, entropy=True)
    assert nothing is None
    assert torch.equal(torch.autograd.grad(alone.sum(), hidden)[0], torch.autograd.grad(both.sum(), hidden)[0])


def test_narrow_weights_are_multiplied_and_summed_in_fp32():
    hidden, weight, targets = problem(torch.bfloat16)
    logprobs, entropies = token_logprobs(hidden, weight, targets, entropy=True, tile=(2, 3))
    found = torch.autograd.grad(logprobs.sum() + entropies.sum(), (hidden, weight))
    assert logprobs.dtype == entropies.dtype == torch.float32
    wide = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight)]
    expected = by_definition(*wide, targets, 1.0)
    torch.testing.assert_close((logprobs.double(), entropies.double()), expected, rtol=1e-6, atol=1e-6)
    gradients = torch.autograd.grad(sum(expected).sum(), wide)
    # all that bf16 costs is the rounding of the result: 8 bits
    torch.testing.assert_close(found, [item.bfloat16() for item in gradients], rtol=2**-7, atol=1e-6)


def test_large_logits_do_not_overflow():
    hidden, weight, targets = problem(torch.float32)
    logprobs, entropies = token_logprobs(1e4 * hidden, weight, targets, entropy=True, tile=(2, 3))
    expected, _ = token_logprobs(1e4 * hidden.double(), weight.double(), targets)
    torch.testing.assert_close(logprobs.double(), expected, rtol=1e-5, atol=1e-3)
    assert (logprobs <= 0).all()
    assert torch.isfinite(entropies).all()


def test_nothing_to_compute_is_no_error():
    hidden, weight, targets = problem()
    logprobs, entropies = token_logprobs(hidden[:0], weight, targets[:0], entropy=True)
    assert logprobs.shape == entropies.shape == (0,)
    (logprobs.sum() + entropies.sum()).backward()
    assert not weight.grad.any()


def test_a_frozen_head_gets_no_gradient_and_changes_none():
    hidden, weight, targets = problem()
    token_logprobs(hidden, weight.detach(), targets)[0].sum().backward()
    frozen = hidden.grad.clone()
    hidden.grad = None
    token_logprobs(hidden, weight, targets)[0].sum().backward()
    assert torch.equal(frozen, hidden.grad)


@pytest.mark.parametrize("wrong", [-1, V])
def test_an_id_outside_of_the_vocabulary_is_refused(wrong):
    hidden, weight, targets = problem()
    targets[3] = wrong
    with pytest.raises(IndexError, match=rf"\[0, {V}\)"):
        token_logprobs(hidden, weight, targets)


def test_logits_give_the_same_as_hidden_states():
    hidden, weight, targets = problem()
    torch.testing.assert_close(
        logits_logprobs(hidden @ weight.T, targets, temperature=0.5, entropy=True),
        token_logprobs(hidden, weight, targets, temperature=0.5, entropy=True),
    )


def test_logits_are_held_for_one_tile_only():
    tokens, vocabulary = 40, 60
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, 2, generator=random).requires_grad_()
    weight = torch.randn(vocabulary, 2, generator=random).requires_grad_()
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            if torch.is_tensor(result):
                largest = max(largest, result.numel())
            return result

    with Watch():
        logprobs, _ = token_logprobs(hidden, weight, torch.arange(tokens), tile=(16, 10))
        logprobs.sum().backward()
    assert largest == 16 * 10  # the head itself has 120
