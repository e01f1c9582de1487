"""Top-k, top-p and sampling masks against a slow reference in float64, and rows that must not depend on each other."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core.engines import truncation
from agentrl_core.engines.sampling import Draw, sample

NO_ROWS, NO_TOKENS = torch.empty(0, dtype=torch.int64), torch.empty(0, 0, dtype=torch.bool)


def left_of(probs, top_p, top_k):
    """Return the ids that top-k and then top-p leave; tokens of equal probability stay or go together."""
    ordered = sorted(probs, reverse=True)
    cut = ordered[min(top_k, len(ordered)) - 1] if top_k else 0.0
    total = math.fsum(prob for prob in probs if prob >= cut)
    mass, least = 0.0, ordered[0]
    for prob in ordered:
        if prob < cut or mass >= top_p * total:
            break
        least, mass = prob, mass + prob
    return {token for token, prob in enumerate(probs) if prob >= least and prob > 0}


def draw(logits, rows, keeping=None):
    """Sample one token for each (uniform, temperature, top_p, top_k); return ids, logprobs and sets of kept ids."""
    knobs = torch.tensor(rows, dtype=torch.float64).t().contiguous()
    truncated = torch.tensor([row for row, (_, _, top_p, top_k) in enumerate(rows) if top_p < 1 or top_k > 0])
    keeping = truncated if keeping is None else keeping
    draws = Draw(knobs, False, truncated, keeping, NO_ROWS, NO_TOKENS, NO_ROWS, 0)
    (ids, logprobs, before), kept = sample(logits, draws)
    sets = [set(kept[1, kept[0] == place].tolist()) for place in range(len(keeping))]
    return ids.long().tolist(), logprobs.tolist(), before.tolist(), sets


def distinct(probs, top_p, top_k):
    """Return whether rounding decides about no token: no two probabilities, and no sums, are all but equal."""
    ordered = np.sort(probs)[::-1]
    cut = ordered[: top_k or None]
    sums = np.cumsum(cut) / cut.sum()
    gaps = -np.diff(ordered)
    return bool((abs(sums - top_p) > 1e-5).all() and ((gaps > 1e-6 * ordered[:-1]) | (gaps == 0)).all())


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    size=st.sampled_from([3, 40, 700]),
    spread=st.sampled_from([0.1, 1.0, 6.0]),
    knobs=st.lists(
        st.tuples(st.floats(0, 0.999999), st.sampled_from([0.5, 1.0, 1.7]), st.floats(0.01, 1), st.integers(0, 60)),
        min_size=1,
        max_size=5,
    ),
)
def test_tokens_and_masks_are_those_of_a_slow_reference(seed, size, spread, knobs):
    logits = torch.randn(len(knobs), size, generator=torch.Generator().manual_seed(seed)) * spread
    ids, logprobs, before, sets = draw(logits, knobs, keeping=torch.arange(len(knobs)))
    for row, (_, temperature, top_p, top_k) in enumerate(knobs):
        probs = torch.softmax(logits[row].double() / temperature, 0).numpy()
        assert before[row] == pytest.approx(math.log(probs[ids[row]]), abs=1e-5)
        if not distinct(probs, top_p, top_k):
            continue
        left = left_of(probs.tolist(), top_p, top_k)
        assert sets[row] == left
        total = math.fsum(probs[token] for token in left)
        assert ids[row] in left
        assert logprobs[row] == pytest.approx(math.log(probs[ids[row]] / total), abs=1e-5)


def test_top_p_counts_the_mass_that_top_k_leaves():
    # Of 0.5 and 0.3, the first has 0.625: enough for 0.6, which the whole distribution would not be.
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert draw(logits, [(0.0, 1.0, 0.6, 2)])[3] == [{0}]
    assert draw(logits, [(0.0, 1.0, 0.6, 0)])[3] == [{0, 1}]


def test_equal_probabilities_stay_or_go_together():
    logits = torch.tensor([[0.4, 0.2, 0.2, 0.2]]).log()
    assert draw(logits, [(0.0, 1.0, 1.0, 2)])[3] == [{0, 1, 2, 3}]
    assert draw(logits, [(0.0, 1.0, 0.3, 0)])[3] == [{0}]
    assert draw(logits, [(0.0, 1.0, 0.5, 0)])[3] == [{0, 1, 2, 3}]


def test_a_single_token_that_is_left_is_certain():
    ids, logprobs, before, sets = draw(torch.tensor([[2.0, 1.0, 0.0]]), [(0.999, 1.0, 1e-9, 0)])
    assert (ids, logprobs, sets) == ([0], [0.0], [{0}])
    assert before[0] < -0.4


def test_a_row_is_sampled_alike_whatever_stands_beside_it():
    """Neither the number of tokens that are looked at nor their sorting may reach other rows."""
    generator = torch.Generator().manual_seed(3)
    # Rounded, so that many logits are equal.
    logits = (torch.randn(4, 900, generator=generator) * 2).round(decimals=1)
    rows = [(0.3, 1.0, 0.9, 5), (0.7, 1.0, 0.99, 0), (0.5, 0.5, 1.0, 300), (0.2, 1.0, 0.5, 40)]
    together = draw(logits, rows)
    for row, knobs in enumerate(rows):
        alone = draw(logits[row : row + 1], [knobs])
        assert [part[0] for part in alone] == [part[row] for part in together]


def test_rows_without_masks_record_logprobs_before_truncation():
    logits = torch.tensor([[0.5, 0.3, 0.2]] * 2).log()
    _, logprobs, before, sets = draw(logits, [(0.0, 1.0, 0.7, 0)] * 2, keeping=torch.tensor([1]))
    assert logprobs == pytest.approx([math.log(0.5), math.log(0.625)], abs=1e-6)
    assert before == pytest.approx([math.log(0.5)] * 2, abs=1e-6)
    assert sets == [{0, 1}]


def test_all_tokens_are_sorted_only_where_few_do_not_suffice(monkeypatch):
    looked_at = []
    least = truncation._least
    monkeypatch.setattr(truncation, "_least", lambda *given: looked_at.append(given[1].shape[1]) or least(*given))
    peaked, flat = torch.tensor([[0.9] + [0.1 / 999] * 999]), torch.full((1, 1000), 1e-3)
    ones, none = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    truncation.least_kept(peaked, ones * 0.8, none)
    assert looked_at == [truncation.FEW]
    truncation.least_kept(flat, ones, none + 5)
    assert looked_at == [truncation.FEW, 5]
    assert truncation.least_kept(flat, ones * 0.5, none).item() == pytest.approx(1e-3)
    assert looked_at == [truncation.FEW, 5, truncation.FEW, 1000]
