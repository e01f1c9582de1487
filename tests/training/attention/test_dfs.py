"""Walking a trie with the model's cache: any tree, little memory, and gradients that add up."""

import weakref
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.attention.test_models import DELTA, SLIDING, assert_as_alone, build, gradients, sample, tree

from agentrl_core.batching.packing import pack
from agentrl_core.errors import ConfigError
from agentrl_core.losses import AggregationConfig
from agentrl_core.training.policy import Policy


def packed(samples, **options):
    return pack(samples, **{"max_tokens": 10**6, "config": AggregationConfig()} | options).micro_batches


@contextmanager
def counting(model):
    """How many tokens each forward of the model took."""
    counts = []
    hook = model.get_input_embeddings().register_forward_hook(lambda _, inputs, __: counts.append(inputs[0].numel()))
    try:
        yield counts
    finally:
        hook.remove()


class Held:
    """A tensor kept for a backward pass."""

    def __init__(self, tensor):
        self.tensor = tensor


def most_held(run):
    """Numbers that graphs held at once while `run` ran, at most."""
    held = most = 0

    def release(count):
        nonlocal held
        held -= count

    def keep(tensor):
        nonlocal held, most
        kept = Held(tensor)
        held += tensor.numel()
        most = max(most, held)
        weakref.finalize(kept, release, tensor.numel())
        return kept

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept.tensor):
        run()
    return most


@pytest.fixture(scope="module")
def hybrid():
    """A layer with a state, and one with a window shorter than most sequences."""
    return Policy(build("qwen3_5_text", **DELTA), attention="dfs")


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.integers(3, 4), min_size=2, max_size=9), min_size=1, max_size=6))
def test_any_tree_is_as_its_sequences_alone(hybrid, sequences):
    assert_as_alone(hybrid, [sample(ids, row) for row, ids in enumerate(sequences)])


def test_every_token_is_forwarded_once_but_those_that_are_nodes_by_themselves(hybrid):
    (batch,) = packed(tree())
    with counting(hybrid.model) as counts, torch.no_grad():
        hybrid.logprobs(batch)
    assert min(counts) > 1
    assert sum(counts) <= batch.tokens + 6
    assert batch.tokens < sum(batch.trie.lengths) * 0.7


def test_the_gradients_of_micro_batches_add_up(hybrid):
    halves = [packed(half)[0] for half in (tree()[:4], tree()[4:])]
    apart = [gradients(hybrid.model, hybrid.logprobs(half, entropy_gradient=True)) for half in halves]
    hybrid.model.zero_grad()
    for half in halves:
        logprobs, entropy = hybrid.logprobs(half, entropy_gradient=True)
        weights = torch.linspace(-1, 1, len(logprobs))
        (logprobs * weights + entropy * weights.flip(0) * 0.5).sum().backward()
    for name, parameter in hybrid.model.named_parameters():
        torch.testing.assert_close(parameter.grad, apart[0][name] + apart[1][name], rtol=1e-5, atol=1e-6)


def test_one_path_is_held_at_a_time(hybrid):
    start, ends = [*range(3, 43)], [[end] * 30 for end in range(3, 11)]

    def most(count):
        (batch,) = packed([sample(start + end, row) for row, end in enumerate(ends[:count])])
        return most_held(lambda: gradients(hybrid.model, hybrid.logprobs(batch)))

    assert most(8) < 1.1 * most(2)


def test_frozen_weights_take_no_part(hybrid):
    (batch,) = packed(tree())
    hybrid.model.requires_grad_(False)
    try:
        assert not hybrid.logprobs(batch)[0].requires_grad
    finally:
        hybrid.model.requires_grad_(True)


def test_sequences_longer_than_a_window_are_walked():
    policy = Policy(build("qwen2", **SLIDING | {"sliding_window": 30, "use_sliding_window": True}))
    assert policy.attention == "rect"
    for trunk, walked in ((9, False), (40, True)):
        samples = tree(trunk=trunk)
        (batch,) = packed(samples)
        with counting(policy.model) as counts, torch.no_grad():
            policy.logprobs(batch)
        assert (len(counts) > 1) == walked
        assert sum(counts) < sum(batch.trie.lengths)
        assert_as_alone(policy, samples)


def test_a_cache_that_no_trial_covers_is_refused(monkeypatch):
    monkeypatch.setattr("agentrl_core.training.attention.branch_cache._CONTINUED", frozenset())
    with pytest.raises(ConfigError, match=r"'dfs' does not fit Qwen3ForCausalLM: it keeps its past in DynamicLayer"):
        Policy(build("qwen3"), attention="dfs")
