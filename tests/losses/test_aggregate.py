import pytest
import torch

from agentrl_core.api.losses import LossBatch, LossOutput
from agentrl_core.losses import AggregationConfig
from agentrl_core.losses.aggregate import Denominators, aggregate
from agentrl_core.losses.grpo import GRPO


def batch_of(sequence, mask):
    sequence = torch.tensor(sequence)
    zeros = torch.zeros(len(sequence), dtype=torch.float64)
    return LossBatch(
        logprobs=zeros,
        behaviour_logprobs=zeros,
        advantages=zeros,
        mask=torch.tensor(mask, dtype=torch.float64),
        sequence=sequence,
        num_sequences=2,
        record=sequence,
        group=sequence,
        lag=torch.zeros_like(sequence),
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Sequence 0: terms 1 and 2, the second dropped by the loss; sequence 1: 10, 20 and a masked 40.
        ({"aggregation": "token_mean"}, (1 + 30) / 4),
        ({"aggregation": "seq_mean_token_mean"}, (1 / 2 + 30 / 2) / 2),
        ({"aggregation": "seq_mean_token_sum"}, (1 + 30) / 2),
        ({"aggregation": "constant", "horizon": 10}, (1 + 30) / 20),
        ({"aggregation": "agentcpm_rows"}, (1 / 1 + 30 / 2) / 2),
    ],
    ids=lambda value: value["aggregation"] if isinstance(value, dict) else "",
)
def test_each_aggregation_has_its_denominator(options, expected):
    batch = batch_of([0, 0, 1, 1, 1], [1, 1, 1, 1, 0])
    output = LossOutput(
        per_token=torch.tensor([1.0, 2.0, 10.0, 20.0, 40.0], dtype=torch.float64),
        keep=torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64),
    )
    denominators = Denominators.count(batch.mask, batch.sequence, batch.num_sequences)
    loss = aggregate(AggregationConfig(**options), batch, output, denominators)
    assert loss.item() == pytest.approx(expected, abs=1e-12)


def test_a_sequence_without_a_loss_token_is_none():
    found = Denominators.count(torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([0, 2, 1, 2]), 4)
    assert (found.tokens, found.sequences, found.sequence_tokens.tolist()) == (2, 2, [1, 1, 1, 1])


def test_a_sequence_spread_over_micro_batches_is_averaged_as_one():
    first, second = batch_of([0, 0], [1, 1]), batch_of([0, 1], [1, 1])
    denominators = Denominators.count(torch.ones(4, dtype=torch.float64), torch.tensor([0, 0, 0, 1]), 2)
    config = AggregationConfig(aggregation="seq_mean_token_mean")
    shares = [
        aggregate(config, batch, LossOutput(per_token=torch.tensor(terms).double(), keep=batch.mask), denominators)
        for batch, terms in ((first, [3.0, 6.0]), (second, [9.0, 5.0]))
    ]
    assert sum(shares).item() == pytest.approx(((3 + 6 + 9) / 3 + 5) / 2)


def test_a_decay_without_a_region_to_narrow_is_refused():
    with pytest.raises(ValueError, match="importance_weight_cap_ratio"):
        GRPO(out_of_date_decay=0.5)
