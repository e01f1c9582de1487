import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.api.kept_tokens import mask_of
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


def test_samples_that_begin_alike_share_their_tokens_and_loss_tokens_keep_their_own_numbers():
    (batch,) = pack(
        [sample(4, record=1, positions=[1, 3]), sample(2)], max_tokens=100, config=AggregationConfig()
    ).micro_batches
    assert batch.ids.tolist() == [1, 2, 3]  # the last loss token of a sample predicts nothing
    assert batch.positions.tolist() == [0, 1, 2]
    assert batch.tokens == 3
    assert batch.call_tokens == 4  # three and one, as none would forward its last token
    assert batch.targets.tolist() == [2, 4, 2]
    assert batch.predictions.place.tolist() == [0, 2]
    assert batch.predictions.token.tolist() == [2, 4]
    assert batch.predictions.temperature.tolist() == [0.75, 1.25]
    assert batch.prediction.tolist() == [0, 1, 0]
    assert batch.behaviour_logprobs.tolist() == [-0.5, -1.5, -0.5]
    assert batch.advantages.tolist() == [1.0, 1.0, 0.0]
    assert batch.version.tolist() == [7, 7, 7]
    assert batch.record.tolist() == [1, 1, 0]


def test_the_same_token_at_two_temperatures_is_predicted_twice():
    rows = [sample(3), attrs.evolve(sample(3, record=1), temperatures=[2.0])]
    (batch,) = pack(rows, max_tokens=100, config=AggregationConfig()).micro_batches
    assert batch.predictions.place.tolist() == [1, 1]
    assert batch.predictions.temperature.tolist() == [1.0, 2.0]
    assert batch.prediction.tolist() == [0, 1]


def test_without_merging_every_sample_has_its_own_tokens():
    (batch,) = pack([sample(4), sample(3)], max_tokens=100, config=AggregationConfig(), merge=False).micro_batches
    assert batch.ids.tolist() == [1, 2, 3, 1, 2]
    assert batch.call_tokens == batch.tokens == 5
    assert batch.positions.tolist() == [0, 1, 2, 0, 1]
    assert batch.predictions.place.tolist() == [2, 4]
    assert batch.predictions.row.tolist() == [0, 1]


ids = st.lists(st.integers(0, 2), min_size=2, max_size=12)


@given(
    groups=st.lists(st.lists(ids, min_size=1, max_size=4), min_size=1, max_size=6),
    max_tokens=st.integers(1, 40),
    merge=st.booleans(),
)
def test_micro_batches_keep_their_budget_and_every_loss_token_its_own(groups, max_tokens, merge):
    samples = [
        attrs.evolve(sample(len(row), group=number), ids=row, record=100 * number + index)
        for number, group in enumerate(groups)
        for index, row in enumerate(group)
    ]
    update = pack(samples, max_tokens=max_tokens, config=AggregationConfig(), merge=merge)
    found = {}
    for batch in update.micro_batches:
        assert batch.tokens <= max_tokens or len(batch.trie.lengths) == 1
        assert merge or batch.tokens == sum(batch.trie.lengths)
        wanted = batch.predictions
        for record, index in zip(batch.record.tolist(), batch.prediction.tolist(), strict=True):
            before = list(batch.trie.sequence(int(wanted.row[index])))
            place = int(wanted.place[index])
            assert batch.trie.places(int(wanted.row[index]), range(len(before)))[batch.positions[place]] == place
            found[record] = [*before[: batch.positions[place] + 1], int(wanted.token[index])]
    assert found == {item.record: list(item.ids) for item in samples}
    assert update.records == sorted(found)
    assert update.denominators.tokens == len(samples)


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8), prompt=st.integers(1, 6), max_tokens=st.integers(6, 40)
)
def test_a_group_that_fits_stays_in_one_micro_batch(sizes, prompt, max_tokens):
    samples = [
        attrs.evolve(
            sample(prompt + 3, record=10 * number + index, group=number), ids=[number] * prompt + [7, index, 9]
        )
        for number, size in enumerate(sizes)
        for index in range(size)
    ]
    update = pack(samples, max_tokens=max_tokens, config=AggregationConfig())
    for number, size in enumerate(sizes):
        parts = sum((batch.group == number).any().item() for batch in update.micro_batches)
        assert parts == 1 or prompt + 1 + size > max_tokens


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=8), joined=st.integers(1, 20))
def test_groups_share_no_more_than_the_joined_tokens_and_are_not_parted_for_it(sizes, joined):
    samples = [
        attrs.evolve(sample(5, record=10 * number + index, group=number), ids=[number, number, 7, index, 9])
        for number, size in enumerate(sizes)
        for index in range(size)
    ]
    update = pack(samples, max_tokens=40, config=AggregationConfig(), joined_tokens=joined)
    groups = [set(batch.group.tolist()) for batch in update.micro_batches]
    assert sum(map(len, groups)) == len(sizes)
    for batch, own in zip(update.micro_batches, groups, strict=True):
        assert len(own) == 1 or batch.tokens <= joined
    # No two micro-batches would fit into one.
    tokens = sorted(batch.tokens for batch in update.micro_batches)
    assert len(tokens) < 2 or tokens[0] + tokens[1] > joined


@given(records=st.lists(st.lists(ids, min_size=1, max_size=3), min_size=1, max_size=5), max_tokens=st.integers(1, 30))
def test_a_record_is_not_parted_where_a_loss_looks_at_whole_sequences(records, max_tokens):
    samples = [
        attrs.evolve(sample(len(row), record=number, positions=[len(row) - 1]), ids=row)
        for number, rows in enumerate(records)
        for row in rows
    ]
    update = pack(samples, max_tokens=max_tokens, config=AggregationConfig(), whole_sequences=True)
    of_batch = [set(batch.record.tolist()) for batch in update.micro_batches]
    assert sum(map(len, of_batch)) == len(records)
    assert all(
        batch.tokens <= max_tokens or len(own) == 1 for batch, own in zip(update.micro_batches, of_batch, strict=True)
    )


def test_groups_with_one_system_prompt_share_it():
    rows = [attrs.evolve(sample(10, record=n, group=n), ids=[5] * 8 + [n, 1]) for n in range(4)]
    assert [batch.tokens for batch in pack(rows, max_tokens=12, config=AggregationConfig()).micro_batches] == [12]


def test_the_largest_groups_are_placed_first():
    rows = [
        attrs.evolve(sample(size + 1, record=n, group=n), ids=[n] * (size + 1)) for n, size in enumerate((4, 4, 6, 6))
    ]
    assert [batch.tokens for batch in pack(rows, max_tokens=10, config=AggregationConfig()).micro_batches] == [10, 10]


def test_a_group_goes_where_it_adds_the_fewest_tokens():
    ids = [[5] * 8 + [1, 1, 1, 1, 0], [6] * 11 + [0], [5] * 8 + [2, 0]]
    rows = [attrs.evolve(sample(len(row), record=n, group=n), ids=row) for n, row in enumerate(ids)]
    # the third fits both: it shares 8 of its 9 tokens with the first
    assert [batch.tokens for batch in pack(rows, max_tokens=20, config=AggregationConfig()).micro_batches] == [13, 11]


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
    update = pack(rows, max_tokens=100, config=AggregationConfig(**options))
    assert torch.cat([batch.sequence for batch in update.micro_batches]).tolist() == sequences
    assert update.denominators.sequences == len(set(sequences))
    assert {batch.num_sequences for batch in update.micro_batches} == {len(set(sequences))}


def test_a_group_stays_in_one_update():
    samples = [sample(3, record=number, group=number // 4) for number in range(20)]
    shares = split_updates(samples, 2)
    assert [[item.group for item in share] for share in shares] == [[0] * 4 + [1] * 4 + [2] * 4, [3] * 4 + [4] * 4]
    two = [sample(3, record=number, group=number // 3) for number in range(4)]
    assert [[item.group for item in share] for share in split_updates(two, 2)] == [[0] * 3, [1]]


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


def test_a_prediction_belongs_to_one_sampling_mask():
    """Equal masks at one place share a prediction; a record of other weights may have another mask there."""
    one, other, free = mask_of([3, 5]), mask_of([3]), b""
    rows = [attrs.evolve(sample(3, record=record), kept=(mask,)) for record, mask in enumerate([one, other, one, free])]
    (batch,) = pack([*rows, sample(3, record=4)], max_tokens=100, config=AggregationConfig()).micro_batches
    kept = batch.predictions.kept
    assert batch.predictions.place.tolist() == [1, 1, 1]
    assert kept.counts[batch.prediction].tolist() == [2, 1, 2, 0, 0]
    assert batch.prediction[0] == batch.prediction[2]
    assert batch.prediction[3] == batch.prediction[4]
    assert kept.part(batch.prediction).ids.tolist() == [3, 5, 3, 3, 5]


def test_without_masks_there_are_no_kept_sets():
    (batch,) = pack([sample(3)], max_tokens=100, config=AggregationConfig()).micro_batches
    assert batch.predictions.kept is None
