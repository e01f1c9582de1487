"""The token trie: sequences that begin alike, laid out so that every token is computed once.

Tokens lie in depth-first order: a node of the compressed trie is a stretch [start, end), and everything below it
the stretch [end, stop) right behind it. So a token sees the key at place k exactly where k <= its own place <
`stop` of k's node, and attention over the tree is, for every node, the causal rectangle of queries [start, stop)
and keys [start, end). A dialogue that only grows is one node: plain causal attention.
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


class Node(NamedTuple):
    """A stretch of tokens without a branch in it."""

    start: int
    end: int
    stop: int
    """End of everything below it; the tokens from `start` to here see the node's own."""


@attrs.frozen(kw_only=True, eq=False)
class TokenTrie:
    """S sequences over T tokens, each of which every sequence that begins with it shares."""

    ids: array[int]
    """Token ids in depth-first order. [T]"""
    positions: array[int]
    """Place of each token in its sequences, from 0. [T]"""
    nodes: tuple[Node, ...]
    """In depth-first order; they cover all T tokens."""
    paths: tuple[tuple[tuple[int, int], ...], ...]
    """Per sequence: (position, place) of where each of its unbroken runs of places begins. [S]"""
    lengths: tuple[int, ...]
    """[S]"""

    @classmethod
    def build(cls, sequences: Iterable[Sequence[int]], *, merge: bool = True) -> TokenTrie:
        """Lay out `sequences` of token ids; without `merge` each is a tree of its own, in the order given.

        Merged, the order is that of the ids, so equal sequences in any order give equal tries.
        """
        keys = [_key(sequence) for sequence in sequences]
        return _merged(keys) if merge else _side_by_side(keys)

    def places(self, sequence: int, positions: Sequence[int]) -> NDArray[np.int64]:
        """Where the tokens at `positions` of a sequence lie among the T tokens. [positions]."""
        wanted = np.asarray(positions, dtype=np.int64)
        if not len(wanted):
            return wanted
        begins, places = np.array(self.paths[sequence], dtype=np.int64).T
        found: NDArray[np.int64] = wanted + (places - begins)[np.searchsorted(begins, wanted, side="right") - 1]
        return found

    def sequence(self, index: int) -> array[int]:
        """Token ids of one sequence, as it was given."""
        path = self.paths[index]
        ends = [*(begin for begin, _ in path[1:]), self.lengths[index]]
        ids = array("I")
        for (begin, place), end in zip(path, ends, strict=False):  # an empty sequence has no run
            ids.extend(self.ids[place : place + end - begin])
        return ids

    @property
    def depth(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.lengths, default=0)


class Overlap:
    """How many tokens a growing set of sequences takes in one trie."""

    def __init__(self, sequences: Iterable[Sequence[int]] = ()) -> None:
        self._keys: list[bytes] = []
        self.tokens = 0
        """Tokens of the trie of all that was added."""
        for sequence in sequences:
            self.add(sequence)

    def added_by(self, sequence: Sequence[int]) -> int:
        """Tokens that `sequence` would add: those after its longest beginning that is there already."""
        key = _key(sequence)
        at = bisect_left(self._keys, key)
        # what shares most with it stands next to it in the order of the ids
        shared = max((_shared(key, other) for other in self._keys[max(at - 1, 0) : at + 1]), default=0)
        return len(key) // _BYTES - shared

    def add(self, sequence: Sequence[int]) -> None:
        """Put a sequence in."""
        self.tokens += self.added_by(sequence)
        insort(self._keys, _key(sequence))

    def join(self, other: Overlap) -> None:
        """Put all of another set in."""
        for key in other._keys:
            self.add(array("I", key))

    def joint_tokens(self, other: Overlap) -> int:
        """Tokens of the trie of both, at most: what the other's sequences share with these, counted once.

        All of a group begin alike, so what its first and its last share with ours bounds what it saves.
        """
        if not (self._keys and other._keys):
            return self.tokens + other.tokens
        trunk = _shared(other._keys[0], other._keys[-1])
        first = array("I", other._keys[0])
        return self.tokens + other.tokens - min(trunk, len(first) - self.added_by(first))


def _merged(keys: list[bytes]) -> TokenTrie:
    """Sequences in order of their bytes stand next to those that they share most with."""
    ids, positions = array("I"), array("I")
    paths: list[tuple[tuple[int, int], ...]] = [()] * len(keys)
    borders = set()
    path: list[tuple[int, int]] = []
    previous = b""
    for index in sorted(range(len(keys)), key=keys.__getitem__):
        key = keys[index]
        shared = _shared(previous, key)
        while path and path[-1][0] >= shared:
            path.pop()
        if shared * _BYTES < len(key):
            last = path[-1][1] + shared - path[-1][0] if path else -1  # the place after the last shared token
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


def _nodes(starts: list[int], positions: array[int], total: int) -> tuple[Node, ...]:
    """What lies below a node ends where the next token stands no deeper than the node's first."""
    stops = [total] * len(starts)
    open_nodes: list[int] = []
    for index, start in enumerate(starts):
        while open_nodes and positions[starts[open_nodes[-1]]] >= positions[start]:
            stops[open_nodes.pop()] = start
        open_nodes.append(index)
    return tuple(map(Node, starts, [*starts[1:], total], stops))


def _side_by_side(keys: list[bytes]) -> TokenTrie:
    ids, positions = array("I"), array("I")
    nodes, paths = [], []
    for key in keys:
        start = len(ids)
        ids.frombytes(key)
        positions.extend(range(len(ids) - start))
        paths.append(((0, start),))
        if len(ids) > start:
            nodes.append(Node(start, len(ids), len(ids)))
    lengths = tuple(len(key) // _BYTES for key in keys)
    return TokenTrie(ids=ids, positions=positions, nodes=tuple(nodes), paths=tuple(paths), lengths=lengths)


def _key(sequence: Sequence[int]) -> bytes:
    """The ids as bytes: one comparison in C orders two sequences, and equal beginnings stand together."""
    return array("I", sequence).tobytes()


def _shared(left: bytes, right: bytes) -> int:
    """Token ids that two sequences begin with alike."""
    low, high = 0, min(len(left), len(right)) // _BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if left[low * _BYTES : middle * _BYTES] == right[low * _BYTES : middle * _BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
