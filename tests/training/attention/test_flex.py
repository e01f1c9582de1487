"""The block mask of intervals, and the kernel behind it as far as a CPU runs it."""

import pytest
import torch
import torch._dynamo.testing
from hypothesis import given
from hypothesis import strategies as st
from tests.training.attention.test_models import build, gradients, tree

from agentrl_core.batching.packing import pack
from agentrl_core.batching.trie import TokenTrie
from agentrl_core.errors import ConfigError
from agentrl_core.losses import AggregationConfig
from agentrl_core.training.attention.dense import visible
from agentrl_core.training.attention.flex import BLOCK, block_mask, flex, padded
from agentrl_core.training.attention.rect import rect
from agentrl_core.training.policy import Policy

CPU = torch.device("cpu")
UNFUSED = "ignore:flex_attention called without torch.compile"


def trie(lengths):
    """Three branches over a trunk, the first of which branches again."""
    trunk, first, second, third, leaf = lengths
    start = [1] * trunk
    return TokenTrie.build(
        [
            start + [2] * first + [3] * leaf,
            start + [2] * first + [4] * leaf,
            start + [5] * second,
            start + [6] * third,
        ]
    )


@given(st.tuples(*[st.integers(1, 300)] * 5))
def test_blocks_hold_exactly_what_is_visible(lengths):
    nodes = trie(lengths).nodes
    total = nodes[-1].end
    mask = block_mask(nodes, CPU)
    size = padded(total)
    found = torch.zeros(size, size, dtype=torch.bool)
    places = torch.arange(size)
    predicate = mask.mask_mod(None, None, places[:, None], places)
    for counts, indices, whole in (
        (mask.kv_num_blocks, mask.kv_indices, False),
        (mask.full_kv_num_blocks, mask.full_kv_indices, True),
    ):
        for row in range(size // BLOCK):
            for column in indices[0, 0, row, : counts[0, 0, row]].tolist():
                part = (slice(row * BLOCK, (row + 1) * BLOCK), slice(column * BLOCK, (column + 1) * BLOCK))
                assert not found[part].any()
                found[part] = True if whole else predicate[part]
    assert torch.equal(found, predicate)
    assert torch.equal(found[:total, :total], visible(nodes, CPU))
    assert torch.equal(found[total:], torch.eye(size, dtype=torch.bool)[total:])


@pytest.mark.filterwarnings(UNFUSED)
@torch.no_grad()
def test_forward_is_that_of_the_rectangles():
    nodes = trie((150, 70, 3, 40, 90)).nodes
    total = nodes[-1].end
    query, key, value = (torch.randn(1, heads, padded(total), 8) for heads in (4, 2, 2))
    found = flex(nodes, CPU)(query, key, value, 0.3)
    wanted = rect(nodes)(*(one[..., :total, :].contiguous() for one in (query, key, value)), 0.3)
    torch.testing.assert_close(found[..., :total, :], wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("tokens", "size"), [(1, 128), (128, 128), (129, 256), (2048, 2048), (2049, 2304), (32768, 32768)]
)
def test_lengths_are_whole_blocks(tokens, size):
    assert padded(tokens) == size


def test_lengths_are_few_and_near():
    sizes = {padded(tokens) for tokens in range(1, 131_073, 64)}
    assert len(sizes) <= 16 + 8 * 6
    assert all(padded(tokens) <= max(tokens * 9 / 8 + 128, 128) for tokens in range(1, 131_073, 64))


def test_a_kernel_is_compiled_once_for_each_length():
    counter = torch._dynamo.testing.CompileCounter()
    torch._dynamo.reset()
    compiled = torch.compile(torch.nn.attention.flex_attention.flex_attention, backend=counter, dynamic=False)
    for lengths in ((100, 20, 3, 4, 5), (90, 20, 30, 4, 6), (60, 1, 1, 1, 1), (200, 20, 3, 4, 5), (210, 20, 3, 4, 5)):
        nodes = trie(lengths).nodes
        query, key, value = (torch.randn(1, heads, padded(nodes[-1].end), 8) for heads in (4, 2, 2))
        with torch.no_grad():
            compiled(query, key, value, block_mask=block_mask(nodes, CPU), scale=0.3, enable_gqa=True)
    assert counter.frame_count == 2


def test_training_on_a_cpu_is_refused():
    with pytest.raises(ConfigError, match="does not support backward on CPU"):
        Policy(build("llama"), attention="flex")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="FlexAttention has a backward on CUDA only")
def test_gradients_on_cuda_are_those_of_a_mask():
    model = build("qwen3", head_dim=16).cuda()
    (batch,) = pack(tree(trunk=150), max_tokens=10**6, config=AggregationConfig(), device="cuda").micro_batches
    found, wanted = (
        gradients(model, Policy(model, attention=name).logprobs(batch, entropy_gradient=True))
        for name in ("flex", "dense")
    )
    largest = max(gradient.abs().max().item() for gradient in wanted.values())
    for name, gradient in wanted.items():
        # the kernel's products are tf32
        assert (found[name] - gradient).abs().max().item() < 1e-2 * largest, name
