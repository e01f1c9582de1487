"""Sampling masks: one form for a set of ids, and few bytes in a store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.api.kept_tokens import compress, decompress, ids_of, joined, mask_of

IDS = st.sets(st.integers(0, 2**31 - 1), max_size=20)
KEPT = st.lists(IDS.map(mask_of), max_size=30).map(tuple)


@given(IDS)
def test_a_mask_has_its_ids_in_rising_order(ids):
    assert ids_of(mask_of(ids)) == tuple(sorted(ids))


@given(KEPT)
def test_masks_survive_compression(kept):
    assert decompress(compress(kept)) == kept


@pytest.mark.parametrize(
    ("ids", "message"),
    [([-1, 2], "expected at least 0"), ([2**31], "no 32-bit integers"), ([3, 3], "names a token twice")],
)
def test_ids_that_no_model_has_are_refused(ids, message):
    with pytest.raises(ValueError, match=message):
        mask_of(ids)


@pytest.mark.parametrize("data", [b"x", b"\x01\x00\x00\x00nothing", compress((mask_of([5]),))[:-3]])
def test_bytes_that_are_no_masks_are_refused(data):
    with pytest.raises(ValueError, match="no sampling masks"):
        decompress(data)


def test_too_few_ids_for_the_tokens_are_refused():
    data = compress((mask_of([5]), mask_of([6, 7])))
    with pytest.raises(ValueError, match="no sampling masks"):
        decompress(b"\x01" + data[1:])


def test_parts_without_masks_keep_all_tokens_beside_parts_with_masks():
    mask = mask_of([1, 2])
    assert joined([(), (mask,), ()], [2, 1, 1]) == (b"", b"", mask, b"")
    assert joined([(), ()], [2, 1]) == ()


def test_masks_of_a_likely_text_take_few_bytes():
    """Where one token is left almost everywhere, a reply of 1,000 tokens takes 2 bytes a token."""
    kept = tuple(mask_of([7 * place % 900]) if place % 9 else mask_of(range(place, place + 20)) for place in range(1000))
    assert len(compress(kept)) < 2_000
