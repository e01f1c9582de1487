"""Computations of `test_vocab_parallel.py` in processes that share the output head."""

import torch

from agentrl_core.losses.kept import KeptSets
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
    "masks": {"vocabulary": 11, "kept": True, "temperature": 0.8},
    "masks far apart": {"vocabulary": 11, "kept": True, "spread": 200.0},
}


def problem(vocabulary, spread=1.0):
    random = torch.Generator().manual_seed(vocabulary)
    hidden = torch.randn(N, H, generator=random, dtype=torch.float64)
    weight = spread * torch.randn(vocabulary, H, generator=random, dtype=torch.float64)
    return hidden.requires_grad_(), weight, torch.randint(vocabulary, (N,), generator=random)


def masks(targets):
    """Give every token but the third one a mask: some with ids of one shard only, one of the target alone."""
    kept = [{int(target)} | {place, 10 - place} for place, target in enumerate(targets)]
    kept[2], kept[4] = set(), {int(targets[4])}
    ids = [token for ids in kept for token in sorted(ids)]
    return KeptSets(counts=torch.tensor([len(ids) for ids in kept]), ids=torch.tensor(ids))


def compute(hidden, weight, targets, **options):
    """Values, and gradients of a sum in which every token and its entropy weigh differently."""
    weight = weight.clone().requires_grad_()
    if options.pop("kept", False):
        options["kept"] = masks(targets)
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
