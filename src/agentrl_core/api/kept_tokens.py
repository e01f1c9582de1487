"""Sampling masks as engines, stores and the learner exchange them: which tokens were left to sample from.

A mask is a sorted set of token ids in 4 bytes each, the form of an entry of `KeptTokens`: a tuple of Python integers
would take nine times the memory. Stores keep the masks of a reply compressed.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentrl_core.types import KeptTokens

ID_BYTES = 4
"""Bytes of one token id."""


def mask_of(ids: Iterable[int]) -> bytes:
    """Return the mask that keeps `ids`, in any order; none: the mask that keeps all tokens.

    Raises `ValueError` for ids below 0, beyond 32 bits, or given twice.
    """
    ordered = sorted(ids)
    if len(set(ordered)) < len(ordered):
        raise ValueError(f"a sampling mask names a token twice: {ordered!r:.200}")
    try:
        mask = struct.pack(f"<{len(ordered)}i", *ordered)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"a sampling mask has ids that are no 32-bit integers: {error}") from error
    if ordered and ordered[0] < 0:
        raise ValueError(f"a sampling mask has the token id {ordered[0]}, expected at least 0")
    return mask


def ids_of(mask: bytes) -> tuple[int, ...]:
    """Return the ids that a mask keeps, rising; none for a mask that keeps all tokens."""
    return struct.unpack(f"<{len(mask) // ID_BYTES}i", mask)


def joined(parts: Sequence[KeptTokens], lengths: Sequence[int]) -> KeptTokens:
    """Return the masks of consecutive tokens; `lengths` counts the tokens of each part, which may have no masks."""
    if not any(parts):
        return ()
    filled = (part or (b"",) * length for part, length in zip(parts, lengths, strict=True))
    return tuple(mask for part in filled for mask in part)


def compress(kept: KeptTokens) -> bytes:
    """Return the masks of a reply in few bytes, for stores; empty without masks."""
    import numpy as np

    if not kept:
        return b""
    counts = np.array([len(mask) // ID_BYTES for mask in kept], dtype="<u4")
    ids = np.frombuffer(b"".join(kept), dtype="<u4")
    # Distances between neighbours instead of ids, and first all low bytes, then all second ones: both make the bytes
    # more alike. Together they halve what zlib makes of the ids.
    distances = np.diff(ids, prepend=ids[:1])
    starts = (np.cumsum(counts) - counts)[counts > 0]
    distances[starts] = ids[starts]
    planes = np.concatenate((counts, distances)).view(np.uint8).reshape(-1, ID_BYTES).T
    return struct.pack("<I", len(kept)) + zlib.compress(planes.tobytes(), 6)


def decompress(data: bytes) -> KeptTokens:
    """Return the masks that `compress` encoded; `ValueError` if it encoded nothing of this kind."""
    import numpy as np

    if not data:
        return ()
    try:
        (length,) = struct.unpack_from("<I", data)
        planes = np.frombuffer(zlib.decompress(data[4:]), dtype=np.uint8).reshape(ID_BYTES, -1)
    except (struct.error, zlib.error) as error:
        raise ValueError(f"these bytes are no sampling masks: {error}") from error
    values = np.ascontiguousarray(planes.T).view("<u4").ravel()
    counts, distances = values[:length].astype(np.int64), values[length:].astype(np.int64)
    ends = np.cumsum(counts)
    if len(counts) != length or len(distances) != counts.sum():
        raise ValueError(f"these bytes are no sampling masks: {len(distances)} ids for {length} tokens")
    sums = np.concatenate(([0], np.cumsum(distances)))
    ids = (sums[1:] - np.repeat(sums[ends - counts], counts)).astype("<u4").tobytes()
    return tuple(ids[ID_BYTES * (end - count) : ID_BYTES * end] for end, count in zip(ends.tolist(), counts.tolist()))
