"""The prefix index finds exactly what it was told, forgets the oldest first, and never leaves orphans."""

from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.engines.prefixes import PrefixIndex


def test_the_longest_known_prefix_is_found_in_whole_blocks():
    index = PrefixIndex(num_blocks=10, block_tokens=2)
    known, blocks = index.insert([1, 2, 3, 4])
    assert (known, len(blocks)) == (0, 2)
    assert index.match([1, 2, 3, 4, 9, 9]) == blocks
    assert index.match([1, 2, 9, 9]) == blocks[:1]
    assert index.match([1]) == []
    assert index.match([3, 4]) == []


def test_a_block_with_fewer_ids_is_found_by_what_ends_with_it():
    index = PrefixIndex(num_blocks=10, block_tokens=3)
    known, blocks = index.insert([1, 2, 3, 4, 5])
    assert (known, len(blocks)) == (0, 2)
    assert index.match([1, 2, 3, 4, 5]) == blocks
    assert index.match([1, 2, 3, 4, 5, 6]) == blocks[:1]
    assert index.match([1, 2, 3, 4]) == blocks[:1]
    assert index.insert([1, 2, 3, 4, 5]) == (2, [])


def test_a_second_prefix_shares_the_blocks_of_the_first():
    index = PrefixIndex(num_blocks=10, block_tokens=2)
    _, first = index.insert([1, 2, 3, 4])
    known, new = index.insert([1, 2, 7, 8])
    assert (known, len(new)) == (1, 1)
    assert index.match([1, 2, 7, 8]) == [first[0], *new]
    assert index.match([1, 2, 3, 4]) == first


def test_equal_blocks_after_different_prefixes_are_different():
    index = PrefixIndex(num_blocks=10, block_tokens=1)
    index.insert([1, 3])
    index.insert([2, 3])
    assert index.match([1, 3])[1] != index.match([2, 3])[1]


def test_the_least_recently_used_end_is_forgotten_first():
    index = PrefixIndex(num_blocks=4, block_tokens=1)
    index.insert([1, 2])
    index.insert([3, 4])
    index.match([1, 2])
    index.insert([5])
    assert len(index.match([1, 2])) == 2
    assert len(index.match([3, 4])) == 1


def test_a_prefix_larger_than_the_store_is_kept_in_part():
    index = PrefixIndex(num_blocks=3, block_tokens=1)
    known, blocks = index.insert([1, 2, 3, 4, 5])
    assert (known, len(blocks)) == (0, 3)
    assert index.match([1, 2, 3, 4, 5]) == blocks


def test_a_store_without_blocks_keeps_nothing():
    index = PrefixIndex(num_blocks=0, block_tokens=1)
    assert index.insert([1, 2]) == (0, [])
    assert index.match([1, 2]) == []


def test_clear_forgets_everything_and_frees_all_blocks():
    index = PrefixIndex(num_blocks=3, block_tokens=1)
    index.insert([1, 2, 3])
    index.clear()
    assert index.match([1, 2, 3]) == []
    assert len(index.insert([4, 5, 6])[1]) == 3


def test_the_key_after_a_match_names_the_next_block():
    index = PrefixIndex(num_blocks=3, block_tokens=2)
    _, blocks = index.insert([1, 2])
    assert index.key_after([1, 2, 3, 4], blocks) == (blocks[0], (3, 4))
    assert index.key_after([3, 4], []) == (-1, (3, 4))
    assert index.key_after([1, 2, 3], blocks) == (blocks[0], (3,))
    assert index.key_after([1, 2], blocks) is None


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["insert", "match"]), st.lists(st.integers(0, 2), max_size=9)), max_size=40
    ),
    num_blocks=st.integers(1, 8),
)
def test_every_match_leads_to_what_was_written_there(steps, num_blocks):
    """The model: a store in which block b holds the whole prefix that was current when b was filled."""
    size = 2
    index = PrefixIndex(num_blocks=num_blocks, block_tokens=size)
    written = {}
    for kind, ids in steps:
        if kind == "insert":
            known, new = index.insert(ids)
            for position, block in enumerate(new, known):
                written[block] = ids[: (position + 1) * size]
        for position, block in enumerate(index.match(ids)):
            assert written[block] == ids[: (position + 1) * size]
