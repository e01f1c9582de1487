"""The trie against the set of all beginnings of its sequences, which is what a trie is."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentrl_core.batching.trie import Overlap, TokenTrie, TrieNode

few = st.lists(st.lists(st.integers(0, 2), max_size=9), max_size=8)
"""Sequences over three tokens: they share much, repeat, end inside of others, or are empty."""


def beginnings(sequences):
    return {tuple(ids[:length]) for ids in sequences for length in range(1, len(ids) + 1)}


@given(few)
@example([[], []])
@example([[1, 2, 3], [1, 2, 3], [1, 2], [1]])
@example([[1, 2, 3, 4], [1, 2, 5], [1, 2], [0]])
def test_every_different_beginning_has_one_token_and_sees_its_own_path(sequences):
    trie = TokenTrie.build(sequences)
    assert len(trie.ids) == len(trie.positions) == len(beginnings(sequences))
    stop = {place: node.stop for node in trie.nodes for place in range(node.start, node.end)}
    assert sorted(stop) == list(range(len(trie.ids)))
    for index, ids in enumerate(sequences):
        assert list(trie.sequence(index)) == ids
        places = trie.places(index, range(len(ids))).tolist()
        assert [trie.ids[place] for place in places] == ids
        assert [trie.positions[place] for place in places] == list(range(len(ids)))
        for position, place in enumerate(places):
            seen = [key for key in range(len(trie.ids)) if key <= place < stop[key]]
            assert seen == places[: position + 1]


@given(few)
def test_nodes_end_only_where_sequences_part(sequences):
    trie = TokenTrie.build(sequences)
    following = {}
    for ids in sequences:
        for length in range(len(ids)):
            following.setdefault(tuple(ids[:length]), set()).add(ids[length])
    roots = len(following.get((), ()))
    branches = sum(len(next_ids) for before, next_ids in following.items() if before and len(next_ids) > 1)
    assert len(trie.nodes) == roots + branches


@given(few, st.randoms(use_true_random=False))
def test_the_order_of_the_sequences_does_not_matter(sequences, random):
    order = list(range(len(sequences)))
    random.shuffle(order)
    trie, other = TokenTrie.build(sequences), TokenTrie.build([sequences[index] for index in order])
    assert (trie.ids, trie.positions, trie.nodes) == (other.ids, other.positions, other.nodes)


def test_a_dialogue_that_only_grows_is_one_node():
    turns = [list(range(length)) for length in (3, 7, 12)]
    trie = TokenTrie.build(turns)
    assert trie.nodes == (TrieNode(0, 12, 12),)
    assert trie.depth == 12


def test_a_group_is_its_prompt_and_a_node_per_answer():
    trie = TokenTrie.build([[9, 9, 9, answer, 5] for answer in (1, 2, 3)])
    assert trie.nodes == (TrieNode(0, 3, 9), TrieNode(3, 5, 5), TrieNode(5, 7, 7), TrieNode(7, 9, 9))
    assert trie.positions.tolist() == [0, 1, 2, 3, 4, 3, 4, 3, 4]


def test_nested_branches_end_with_their_parent():
    trie = TokenTrie.build([[1, 2, 3], [1, 2, 4], [1, 5], [6]])
    assert trie.nodes == (
        TrieNode(0, 1, 5),
        TrieNode(1, 2, 4),
        TrieNode(2, 3, 3),
        TrieNode(3, 4, 4),
        TrieNode(4, 5, 5),
        TrieNode(5, 6, 6),
    )


@given(few)
def test_without_merging_each_sequence_is_a_tree_in_the_order_given(sequences):
    trie = TokenTrie.build(sequences, merge=False)
    assert trie.ids.tolist() == [token for ids in sequences for token in ids]
    assert [node.end - node.start for node in trie.nodes] == [len(ids) for ids in sequences if ids]
    assert all(node.end == node.stop for node in trie.nodes)
    for index, ids in enumerate(sequences):
        assert [trie.ids[place] for place in trie.places(index, range(len(ids)))] == ids


@given(few, few)
def test_an_overlap_counts_the_tokens_of_the_trie(sequences, others):
    left, right = Overlap(sequences), Overlap(others)
    both = len(beginnings(sequences + others))
    assert left.tokens == len(beginnings(sequences))
    assert both <= left.joint_tokens(right) <= left.tokens + right.tokens
    for ids in others:
        assert left.added_by(ids) == len(beginnings([*sequences, ids])) - len(beginnings(sequences))
    left.join(right)
    assert left.tokens == both


def test_groups_that_share_a_system_prompt_are_counted_with_it_once():
    left = Overlap([[7] * 50 + [1, 2, answer] for answer in range(4)])
    right = Overlap([[7] * 50 + [3, 4, answer] for answer in range(4)])
    assert left.joint_tokens(right) == 50 + 2 * (2 + 4)


@pytest.mark.parametrize("token", [0, 255, 256, 65_536, 2**32 - 1])
def test_ids_of_any_size_are_kept(token):
    trie = TokenTrie.build([[token, 1], [token, 2]])
    assert trie.ids.tolist() == [token, 1, 2]
    with pytest.raises(OverflowError):
        TokenTrie.build([[token, -1]])
