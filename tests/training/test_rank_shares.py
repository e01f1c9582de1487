import attrs
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.batching.samples import Sample
from agentrl_core.batching.trie import Overlap
from agentrl_core.training.ranks import share_out


def sample(record, group, ids):
    return Sample(
        ids=ids,
        positions=[len(ids) - 1],
        logprobs=[0.0],
        temperatures=[1.0],
        advantages=[1.0],
        versions=[0],
        interactions=[record],
        sequences=[record],
        call_tokens=len(ids),
        record=record,
        group=group,
    )


def group_of(number, prompt, completion, size=8, first=0):
    """Records that share a prompt and nothing after it."""
    return [
        sample(first + index, number, [number] * prompt + [100 + 50 * number + index] * completion)
        for index in range(size)
    ]


def tokens(samples):
    return Overlap(item.ids for item in samples).tokens


def test_groups_stay_whole_and_the_load_even():
    groups = [group_of(number, 20, 4 + number, first=10 * number) for number in range(4)]
    shares = share_out([item for group in groups for item in group], 2)
    # 20 + 8 x (4, 5, 6, 7) = 52, 60, 68, 76: the largest with the smallest
    assert [sorted({item.group for item in share}) for share in shares] == [[0, 3], [1, 2]]
    assert [len(share) for share in shares] == [16, 16]


def test_a_group_beyond_a_fair_share_is_parted_between_records():
    shares = share_out(group_of(0, 100, 10), 2)
    assert [tokens(share) for share in shares] == [140, 140]


def test_a_group_is_parted_by_what_its_records_do_not_share():
    group = [
        item for first, size in enumerate((1, 1, 1, 1, 30)) for item in group_of(0, 100, size, size=1, first=first)
    ]
    samples = [
        attrs.evolve(item, ids=[*item.ids[:100], *[first] * (len(item.ids) - 100)]) for first, item in enumerate(group)
    ]
    assert [tokens(share) for share in share_out(samples, 2)] == [130, 104]


def test_a_rank_may_have_nothing_to_do():
    assert [len(share) for share in share_out(group_of(0, 5, 5, size=2), 3)].count(0) == 1


@given(st.data(), st.integers(1, 5))
def test_every_sample_is_on_one_rank_and_a_record_never_on_two(data, ranks):
    samples = [
        sample(record, group, data.draw(st.lists(st.integers(0, 2), min_size=2, max_size=12)))
        for record, group in enumerate(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=8)))
        for _ in range(data.draw(st.integers(1, 3)))
    ]
    shares = share_out(samples, ranks)
    assert len(shares) == ranks
    assert sorted(id(item) for share in shares for item in share) == sorted(map(id, samples))
    for record in {item.record for item in samples}:
        assert sum(any(item.record == record for item in share) for share in shares) == 1
    assert share_out(samples, ranks) == shares
