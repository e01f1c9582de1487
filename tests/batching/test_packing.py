import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.batching.packing import pack, split_updates
from agentrl_core.batching.samples import Sample
from agentrl_core.losses import AggregationConfig


def sample(length, *, record=0, group=0, positions=None, interactions=None):
    positions = list(positions or [length - 1])
    return Sample(
        ids=list(range(1, length + 1)),
        positions=positions,
        logprobs=[-0.5 * position for position in positions],
        temperatures=[0.5 + 0.25 * position for position in positions],
        advantages=[float(record)] * len(positions),
        versions=[7] * len(positions),
        interactions=interactions or [record] * len(positions),
        sequences=interactions or [record] * len(positions),
        record=record,
        group=group,
    )


def test_rows_are_padded_on_the_right_and_loss_tokens_point_into_them():
    (batch,) = pack(
        [sample(4, record=1, positions=[1, 3]), sample(2)], max_tokens=100, config=AggregationConfig()
    ).micro_batches
    assert batch.ids.tolist() == [[1, 2, 0, 0], [1, 2, 3, 4]]
    assert batch.tokens == 6
    assert batch.targets.tolist() == [2, 2, 4]
    assert batch.row.tolist() == [0, 1, 1]
    assert batch.behaviour_logprobs.tolist() == [-0.5, -0.5, -1.5]
    assert batch.temperature.tolist() == [0.75, 0.75, 1.25]
    assert batch.advantages.tolist() == [0.0, 1.0, 1.0]
    assert batch.version.tolist() == [7, 7, 7]
    assert batch.record.tolist() == [0, 1, 1]


@given(lengths=st.lists(st.integers(2, 40), min_size=1, max_size=30), max_tokens=st.integers(1, 120))
def test_a_micro_batch_keeps_its_budget_unless_one_row_is_longer(lengths, max_tokens):
    samples = [sample(length, record=number) for number, length in enumerate(lengths)]
    update = pack(samples, max_tokens=max_tokens, config=AggregationConfig())
    for batch in update.micro_batches:
        assert batch.ids.numel() <= max_tokens or len(batch.ids) == 1
    assert sorted(torch.cat([batch.record for batch in update.micro_batches]).tolist()) == list(range(len(lengths)))
    assert update.records == list(range(len(lengths)))
    assert update.denominators.tokens == len(lengths)


@pytest.mark.parametrize(
    ("options", "sequences"),
    [
        ({"unit": "record"}, [0, 0, 0, 1]),
        ({"unit": "interaction"}, [0, 1, 1, 2]),
        ({"aggregation": "agentcpm_rows"}, [0, 0, 1, 2]),
    ],
)
def test_sequences_are_what_the_config_says(options, sequences):
    rows = [
        sample(3, record=4, positions=[1, 2], interactions=[8, 9]),
        sample(4, record=4, interactions=[9]),
        sample(5, record=6, interactions=[11]),
    ]
    update = pack(rows, max_tokens=3, config=AggregationConfig(**options))
    assert torch.cat([batch.sequence for batch in update.micro_batches]).tolist() == sequences
    assert update.denominators.sequences == len(set(sequences))
    assert {batch.num_sequences for batch in update.micro_batches} == {len(set(sequences))}


def test_a_group_stays_in_one_update():
    samples = [sample(3, record=number, group=number // 4) for number in range(20)]
    shares = split_updates(samples, 2)
    assert [[item.group for item in share] for share in shares] == [[0] * 4 + [1] * 4 + [2] * 4, [3] * 4 + [4] * 4]


def test_fewer_groups_than_updates_are_split_by_record():
    samples = [sample(3, record=number // 2, group=0) for number in range(6)]
    assert [[item.record for item in share] for share in split_updates(samples, 2)] == [[0, 0, 1, 1], [2, 2]]
    assert len(split_updates(samples[:2], 4)) == 1


@given(
    members=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=30),
    updates=st.integers(1, 8),
)
def test_every_sample_is_in_exactly_one_update(members, updates):
    samples = [sample(2, record=10 * group + record, group=group) for group, record in sorted(members)]
    shares = split_updates(samples, updates)
    assert 1 <= len(shares) <= updates
    assert all(shares)
    assert sorted(id(item) for share in shares for item in share) == sorted(map(id, samples))
