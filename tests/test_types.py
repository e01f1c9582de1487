"""Values that all parts share."""

from __future__ import annotations

from itertools import chain, pairwise

from hypothesis import given
from hypothesis import strategies as st

from agentrl_core.types import run_lengths


@given(st.lists(st.integers(0, 2), max_size=8))
def test_runs_of_versions_are_as_long_as_possible(versions):
    runs = run_lengths(versions)
    assert list(chain.from_iterable([version] * count for version, count in runs)) == versions
    assert all(one != other for (one, _), (other, _) in pairwise(runs))
    assert all(count > 0 for _, count in runs)
