"""Attention by rectangles of queries and keys, some of which share a call."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core.batching.trie import TokenTrie
from agentrl_core.training.attention.dense import dense
from agentrl_core.training.attention.rect import rect


@pytest.fixture(scope="module", autouse=True)
def _uninitialised_memory_is_nan():
    torch.use_deterministic_algorithms(True)  # with it, torch fills new memory with NaN
    yield
    torch.use_deterministic_algorithms(False)


runs = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=1, max_size=5)
sequences = runs.map(lambda parts: [token for token, count in parts for _ in range(count)])


@settings(deadline=None)
@given(st.lists(sequences, min_size=1, max_size=12))
def test_output_and_gradients_are_those_of_the_whole_mask(forest):
    nodes = TokenTrie.build(forest).nodes
    total = nodes[-1].end
    torch.manual_seed(0)
    inputs = [torch.randn(1, heads, total, 4, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    weight = torch.randn(1, 4, total, 4, dtype=torch.float64)
    wanted = dense(*inputs, nodes, 0.3)
    found = rect(nodes)(*inputs, 0.3)
    torch.testing.assert_close(found, wanted)
    for one, other in zip(
        torch.autograd.grad((found * weight).sum(), inputs),
        torch.autograd.grad((wanted * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
