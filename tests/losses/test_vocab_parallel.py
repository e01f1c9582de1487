import pytest
import torch
from tests.losses import vocab_parallel_cases as cases
from tests.ranks import on_ranks

pytestmark = pytest.mark.slow  # processes that load torch

RANKS = 2
EXACT = {"rtol": 1e-10, "atol": 1e-10}


@pytest.fixture(scope="module")
def by_rank():
    return on_ranks(RANKS, cases.on_shards)


@pytest.mark.parametrize("case", cases.CASES)
def test_shards_together_give_what_one_head_gives(by_rank, case):
    options = dict(cases.CASES[case])
    problem = cases.problem(options.pop("vocabulary"), options.pop("spread", 1.0))
    logprobs, entropies, to_hidden, to_weight = cases.compute(*problem, **options)
    for rank in range(RANKS):
        rows, *found = by_rank[rank][case]
        torch.testing.assert_close(found, [logprobs, entropies, to_hidden, to_weight[rows]], **EXACT)


def test_shards_cover_the_vocabulary_once(by_rank):
    for case, options in cases.CASES.items():
        rows = [row for rank in by_rank for row in range(rank[case][0].start, rank[case][0].stop)]
        assert rows == list(range(options["vocabulary"]))
