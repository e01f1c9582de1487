"""Token trie: layout of sequences in which every shared prefix appears, and is computed, once.

Tokens are in depth-first order. A node of the compressed trie is the range [start, end), and all nodes below it are the
range [end, stop) right after it. So a token at place q sees the key at place k exactly if k <= q < `stop` of k's node.
Attention over the trie is, for every node, the causal rectangle of queries [start, stop) and keys [start, end). A
dialogue without branches is one node, with plain causal attention.

A *place* counts among the T tokens of the layout, a *position* within one sequence.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, NamedTuple

import attrs
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

_BYTES = array("I").itemsize


class TrieNode(NamedTuple):
    """Range of tokens without a branch inside."""

    start: int
    end: int
    stop: int
    """End of all nodes below; the tokens from `start` to here see the node's own tokens."""


@attrs.frozen(kw_only=True, eq=False)
class TokenTrie:
    """S sequences over T tokens; sequences with a common prefix share its tokens."""

    ids: array[int]
    """Token ids in depth-first order. [T]"""
    positions: array[int]
    """Position of each token in its sequences, from 0. [T]"""
    nodes: tuple[TrieNode, ...]
    """Nodes in depth-first order; they cover all T tokens."""
    paths: tuple[tuple[tuple[int, int], ...], ...]
    """Per sequence, its contiguous runs of places, each as (position, place) of the run's first token. [S]"""
    lengths: tuple[int, ...]
    """Tokens of each sequence. [S]"""

    @classmethod
    def build(cls, sequences: Iterable[Sequence[int]], *, merge: bool = True) -> TokenTrie:
        """Build the trie of `sequences` of token ids; without `merge` each is a separate tree, in the given order.

        A merged trie is ordered by token ids, so the order of `sequences` does not change its tokens.
        """
        keys = [_key(sequence) for sequence in sequences]
        return _merged(keys) if merge else _side_by_side(keys)

    def places(self, sequence: int, positions: Sequence[int]) -> NDArray[np.int64]:
        """Return the places among the T tokens of a sequence's tokens at `positions`. [positions]."""
        wanted = np.asarray(positions, dtype=np.int64)
        if not len(wanted):
            return wanted
        begins, places = np.array(self.paths[sequence], dtype=np.int64).T
        found: NDArray[np.int64] = wanted + (places - begins)[np.searchsorted(begins, wanted, side="right") - 1]
        return found

    def sequence(self, index: int) -> array[int]:
        """Return the token ids of one sequence."""
        path = self.paths[index]
        ends = [*(begin for begin, _ in path[1:]), self.lengths[index]]
        ids = array("I")
        # Not strict: an empty sequence has no run, but a length.
        for (begin, place), end in zip(path, ends, strict=False):
            ids.extend(self.ids[place : place + end - begin])
        return ids

    @property
    def depth(self) -> int:
        """Number of tokens of the longest sequence."""
        return max(self.lengths, default=0)


class Overlap:
    """Number of tokens of a trie to which sequences are added, computed without building the trie."""

    def __init__(self, sequences: Iterable[Sequence[int]] = ()) -> None:
        self._keys: list[bytes] = []
        self.tokens = 0
        """Number of tokens of the trie of all sequences so far."""
        for sequence in sequences:
            self.add(sequence)

    def added_by(self, sequence: Sequence[int]) -> int:
        """Return the number of tokens that `sequence` would add: those after its longest prefix in the trie."""
        key = _key(sequence)
        at = bisect_left(self._keys, key)
        # In sorted order, the sequence with the longest common prefix is a direct neighbour.
        shared = max((_shared(key, other) for other in self._keys[max(at - 1, 0) : at + 1]), default=0)
        return len(key) // _BYTES - shared

    def add(self, sequence: Sequence[int]) -> None:
        """Add a sequence."""
        self.tokens += self.added_by(sequence)
        insort(self._keys, _key(sequence))

    def join(self, other: Overlap) -> None:
        """Add all sequences of another set."""
        for key in other._keys:
            self.add(array("I", key))

    def joint_tokens(self, other: Overlap) -> int:
        """Return an upper bound of the number of tokens of the joint trie.

        Only the common prefix of all of the other's sequences is merged with this set; an exact count would have to
        insert every sequence.
        """
        if not (self._keys and other._keys):
            return self.tokens + other.tokens
        trunk = _shared(other._keys[0], other._keys[-1])
        first = array("I", other._keys[0])
        return self.tokens + other.tokens - min(trunk, len(first) - self.added_by(first))


def _merged(keys: list[bytes]) -> TokenTrie:
    """Build the merged trie: sorted sequences follow each other with their longest common prefixes."""
    ids, positions = array("I"), array("I")
    paths: list[tuple[tuple[int, int], ...]] = [()] * len(keys)
    borders = set()
    path: list[tuple[int, int]] = []
    previous = b""
    for index in sorted(range(len(keys)), key=keys.__getitem__):
        key = keys[index]
        shared = _shared(previous, key)
        # Runs that begin after the shared prefix belong to the previous sequence only.
        while path and path[-1][0] >= shared:
            path.pop()
        if shared * _BYTES < len(key):
            # Place after the last shared token. If the new tokens do not follow right there, both places begin a node.
            last = path[-1][1] + shared - path[-1][0] if path else -1
            if last != len(ids):
                path.append((shared, len(ids)))
                borders |= {len(ids), last} - {-1}
            new = array("I", key[shared * _BYTES :])
            positions.extend(range(shared, shared + len(new)))
            ids.extend(new)
        paths[index] = tuple(path)
        previous = key
    starts = sorted(borders)
    return TokenTrie(
        ids=ids,
        positions=positions,
        nodes=_nodes(starts, positions, len(ids)),
        paths=tuple(paths),
        lengths=tuple(len(key) // _BYTES for key in keys),
    )


def _nodes(starts: list[int], positions: array[int], total: int) -> tuple[TrieNode, ...]:
    """Build the nodes from their first places; a node's `stop` is the next node that starts at most as deep as it."""
    stops = [total] * len(starts)
    open_nodes: list[int] = []
    for index, start in enumerate(starts):
        while open_nodes and positions[starts[open_nodes[-1]]] >= positions[start]:
            stops[open_nodes.pop()] = start
        open_nodes.append(index)
    return tuple(map(TrieNode, starts, [*starts[1:], total], stops))


def _side_by_side(keys: list[bytes]) -> TokenTrie:
    ids, positions = array("I"), array("I")
    nodes, paths = [], []
    for key in keys:
        start = len(ids)
        ids.frombytes(key)
        positions.extend(range(len(ids) - start))
        paths.append(((0, start),))
        if len(ids) > start:
            nodes.append(TrieNode(start, len(ids), len(ids)))
    lengths = tuple(len(key) // _BYTES for key in keys)
    return TokenTrie(ids=ids, positions=positions, nodes=tuple(nodes), paths=tuple(paths), lengths=lengths)


def _key(sequence: Sequence[int]) -> bytes:
    """Return the ids as bytes, which compare in one C call; in sorted order common prefixes are adjacent."""
    return array("I", sequence).tobytes()


def _shared(left: bytes, right: bytes) -> int:
    """Return the number of token ids that two sequences have in common at their start, by binary search."""
    # Slices compare in C; a loop over the ids would run in Python.
    low, high = 0, min(len(left), len(right)) // _BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if left[low * _BYTES : middle * _BYTES] == right[low * _BYTES : middle * _BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
