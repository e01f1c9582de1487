"""Computations of `test_vocab_parallel.py` in processes that share the output head."""

import torch

from agentrl_core.losses.logprob import token_logprobs
from agentrl_core.losses.vocab_parallel import VocabularyShard

N, H = 7, 5
CASES = {
    "even": {"vocabulary": 12},
    "uneven": {"vocabulary": 11},
    "many tiles": {"vocabulary": 11, "tile": (3, 2)},
    "temperatures": {"vocabulary": 11, "temperature": torch.linspace(0.5, 2, N, dtype=torch.float64)},
    "a rank without rows": {"vocabulary": 1},
    "far apart": {"vocabulary": 11, "spread": 200.0},
}


def problem(vocabulary, spread=1.0):
    random = torch.Generator().manual_seed(vocabulary)
    hidden = torch.randn(N, H, generator=random, dtype=torch.float64)
    weight = spread * torch.randn(vocabulary, H, generator=random, dtype=torch.float64)
    return hidden.requires_grad_(), weight, torch.randint(vocabulary, (N,), generator=random)


def compute(hidden, weight, targets, **options):
    """Values, and gradients of a sum in which every token and its entropy weigh differently."""
    weight = weight.clone().requires_grad_()
    logprobs, entropies = token_logprobs(hidden, weight, targets, entropy=True, **options)
    alone, nothing = token_logprobs(hidden, weight, targets, **options)
    assert nothing is None
    torch.testing.assert_close(alone, logprobs)
    scale = torch.linspace(-1, 2, N, dtype=torch.float64)
    gradients = torch.autograd.grad((logprobs * scale + entropies * scale.flip(0)).sum(), (hidden, weight))
    return logprobs.detach(), entropies.detach(), *gradients


def on_shards():
    """Every case, each rank with its rows of the head."""
    found = {}
    for name, case in CASES.items():
        options = dict(case)
        vocabulary = options.pop("vocabulary")
        shard, rows = VocabularyShard.even(vocabulary)
        hidden, weight, targets = problem(vocabulary, options.pop("spread", 1.0))
        found[name] = (rows, *compute(hidden, weight[rows], targets, shard=shard, **options))
    return found
