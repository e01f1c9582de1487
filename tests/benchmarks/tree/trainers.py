"""Trainers of the token trie's benchmark: agentrl's, and two that compute every call separately.

All of them go from samples to gradients. B calls, W tokens of the longest call, N loss tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl_core.api.losses import LossBatch
from agentrl_core.batching.packing import Predictions, pack
from agentrl_core.batching.samples import Sample
from agentrl_core.losses.aggregate import AggregationConfig, Denominators, aggregate
from agentrl_core.losses.grpo import GRPO
from agentrl_core.training.policy import Network, Policy

MAX_TOKENS = 16384
"""Of one forward, for all alike; padding counts."""
AGGREGATION = AggregationConfig()

Train = Callable[[Sequence[Sample]], tuple[float, int]]
"""Adds the gradients to the model's weights; returns the loss and how many tokens were forwarded."""


def trainers(model: Qwen3ForCausalLM) -> dict[str, Train]:
    """Return all three, on one model."""
    policy = Policy(model)
    return {
        "ours": partial(packed, policy, merge=True),
        "packed": partial(packed, policy, merge=False),
        "padded": partial(padded, Network.of(model)),
    }


def qwen3(*, layers: int, hidden: int, vocabulary: int = 8192) -> Qwen3ForCausalLM:
    """Make a Qwen3 with random weights and heads of 32."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        head_dim=32,
        max_position_embeddings=65536,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config)


def packed(
    policy: Policy, samples: Sequence[Sample], *, merge: bool, max_tokens: int = MAX_TOKENS
) -> tuple[float, int]:
    """Train as the learner does; without `merge` the calls lie one behind the other, with one flash call for each."""
    update = pack(samples, max_tokens=max_tokens, config=AGGREGATION, device=policy.device, merge=merge)
    value = 0.0
    for batch in update.micro_batches:
        logprobs, entropy = policy.logprobs(batch)
        value += backward(batch.view(logprobs, entropy, version=0), update.denominators)
    return value, update.tokens


def padded(network: Network, samples: Sequence[Sample]) -> tuple[float, int]:
    """Fill up all calls to the longest with padding on the right, and attend by torch's plain causal attention.

    A batch of more than `MAX_TOKENS` goes through in as few parts of its rows as hold it. Log-probs are ours and
    of the loss tokens only.
    """
    width = max(len(sample.ids) for sample in samples)
    sequences = 1 + max(sample.record for sample in samples)
    records = torch.tensor([sample.record for sample in samples for _ in sample.positions])
    denominators = Denominators.count(torch.ones(len(records)), records, sequences)
    rows = max(1, MAX_TOKENS // width)
    value = 0.0
    for start in range(0, len(samples), rows):
        part = samples[start : start + rows]
        ids = torch.zeros(len(part), width, dtype=torch.long)
        for index, sample in enumerate(part):
            ids[index, : len(sample.ids)] = torch.tensor(sample.ids)
        row = torch.tensor([index for index, sample in enumerate(part) for _ in sample.positions])
        place = torch.tensor([place for sample in part for place in sample.positions])
        states = network.states(ids, row, place - 1)
        logprobs, entropy = network.score(
            states,
            Predictions(place=place - 1, token=ids[row, place], temperature=torch.ones(len(place)), row=row),
        )
        value += backward(_view(part, logprobs, entropy.detach(), sequences), denominators)
    return value, len(samples) * width


def _view(part: Sequence[Sample], logprobs: Tensor, entropy: Tensor, sequences: int) -> LossBatch:
    record = torch.tensor([sample.record for sample in part for _ in sample.positions])
    return LossBatch(
        logprobs=logprobs,
        behaviour_logprobs=torch.tensor([value for sample in part for value in sample.logprobs]),
        advantages=torch.tensor([value for sample in part for value in sample.advantages]),
        mask=torch.ones(len(record)),
        sequence=record,
        num_sequences=sequences,
        record=record,
        group=torch.zeros_like(record),
        lag=torch.zeros_like(record),
        entropy=entropy,
    )


def backward(view: LossBatch, denominators: Denominators) -> float:
    """Add the gradients of one forward; return its share of the loss."""
    loss = aggregate(AGGREGATION, view, GRPO().loss(view), denominators)
    loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
    return loss.item()
