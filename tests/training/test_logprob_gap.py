"""The limits of the gap between engine and learner follow the types that both compute in."""

import re
from types import SimpleNamespace

import pytest
import torch

from agentrl_core.errors import TrainingError
from agentrl_core.training.logprob_gap import GapLimits, LogprobGap

SAMPLES = SimpleNamespace(records=("r0", "r1"), interactions=("i0", "i1"))
EXACT = {"learner_is_precise": True, "engine": "float32"}
ROUNDED = {"learner_is_precise": False, "engine": "bfloat16"}
UNKNOWN = {"learner_is_precise": True, "engine": "unknown"}


def batches(gaps, *, splits=1, versions=None):
    """Make micro-batches, with the learner's log-probabilities, that have these gaps; the engine's are -1."""
    versions = [3] * len(gaps) if versions is None else versions
    for part in torch.arange(len(gaps)).chunk(splits):
        batch = SimpleNamespace(
            version=torch.tensor(versions)[part],
            behaviour_logprobs=torch.full((len(part),), -1.0, dtype=torch.float64),
            interaction=torch.ones(len(part), dtype=torch.long),
            record=torch.ones(len(part), dtype=torch.long),
            targets=part,
        )
        yield batch, torch.tensor(gaps, dtype=torch.float64)[part] - 1.0


def update_of(pairs):
    return SimpleNamespace(micro_batches=[batch for batch, _ in pairs])


def compare(gaps, *, largest=None, splits=1, versions=None, **precision):
    """Inspect made-up gaps in micro-batches, and return the metrics."""
    pairs = list(batches(gaps, splits=splits, versions=versions))
    gap = LogprobGap(SAMPLES, 3, limits=GapLimits.of(largest, **precision), update=update_of(pairs))
    for batch, logprobs in pairs:
        gap.inspect(batch, logprobs)
    return gap.metrics()


def rounding(scale, count=4000, seed=0):
    """Differences as bfloat16 makes them: half of them small, and a few near 1."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        heavy_tailed = torch.distributions.StudentT(torch.tensor(3.0, dtype=torch.float64)).sample((count,))
    return (heavy_tailed * scale).clamp(-1.2, 1.2).tolist()


def test_the_distribution_is_told():
    found = compare([index / 1000 for index in range(-999, 1000)], largest=2.0, splits=7, **ROUNDED)
    assert found["loss/logprob_gap_max"] == pytest.approx(0.999)
    assert found["loss/logprob_gap_mean"] == pytest.approx(999 * 1000 / 1999 / 1000)
    assert found["loss/logprob_gap_p50"] == pytest.approx(0.5, abs=1e-3)
    assert found["loss/logprob_gap_p99"] == pytest.approx(0.99, abs=1e-3)
    # mean(e^x - 1 - x) of a uniform x is sinh(1) - 1
    assert found["loss/logprob_gap_kl"] == pytest.approx(0.175, abs=1e-3)


def test_float32_is_held_to_a_thousandth_of_a_nat():
    compare([9e-4] * 8, **EXACT)
    where = re.escape("record r1, interaction i1, output token 2 (id 6)")
    with pytest.raises(TrainingError, match=where + r".*-1\.000000.*-1\.002000.*trainer\.max_logprob_gap = 0\.001"):
        compare([1e-5] * 6 + [-2e-3] + [1e-5], splits=2, **EXACT)


def test_bfloat16_may_round_as_it_does():
    for precision in (ROUNDED, UNKNOWN, EXACT | {"learner_is_precise": False}, EXACT | {"engine": "bfloat16"}):
        found = compare(rounding(0.03), splits=5, **precision)
        assert found["loss/logprob_gap_max"] > 0.3


@pytest.mark.parametrize("precision", [ROUNDED, UNKNOWN])
def test_a_fault_is_told_from_rounding_by_the_distribution(precision):
    shifted = [value + 0.3 for value in rounding(0.03)]
    with pytest.raises(TrainingError, match=r"than bfloat16 rounds: mean 0\.3.*\(at most 0\.15\), over 4000"):
        compare(shifted, splits=4, **precision)
    some = [2.0 if index % 50 == 0 else value for index, value in enumerate(rounding(0.03))]
    with pytest.raises(TrainingError, match=r"99th percentile 2 \(at most 0\.8\), over 4000 tokens with the median"):
        compare(some, **precision)


def test_the_distribution_of_what_is_left_of_a_refused_update_is_checked():
    pairs = list(batches([value + 0.3 for value in rounding(0.03)], splits=4))
    gap = LogprobGap(SAMPLES, 3, limits=GapLimits.of(None, **ROUNDED), update=update_of(pairs))
    gap.inspect(*pairs[0])
    gap.begin(update_of(pairs[1:]))
    gap.inspect(*pairs[1])
    gap.inspect(*pairs[2])
    with pytest.raises(TrainingError, match="over 3000 tokens"):
        gap.inspect(*pairs[3])


def test_few_tokens_have_no_percentile():
    compare([0.02] * 90 + [1.5], **ROUNDED)
    compare([0.5] * 8, **ROUNDED)


def test_an_engine_that_shows_no_rounding_is_held_to_float32():
    """A model server does not tell its type; the median does."""
    with pytest.raises(TrainingError, match=r"output token 13 \(id 40\).*trainer\.max_logprob_gap = 0\.001"):
        compare([5e-6] * 40 + [0.01] + [5e-6] * 40, splits=3, **UNKNOWN)
    compare([5e-3] * 40 + [0.01] + [5e-3] * 40, **UNKNOWN)


@pytest.mark.parametrize("precision", [EXACT, ROUNDED, UNKNOWN])
def test_a_limit_of_the_config_replaces_them_all(precision):
    compare([0.5] * 200, largest=0.6, **precision)
    with pytest.raises(TrainingError, match=r"trainer\.max_logprob_gap = 0\.4"):
        compare([0.5] * 200, largest=0.4, **precision)


def test_older_tokens_are_not_compared():
    found = compare([0.1, 5.0, 0.1, 5.0], largest=1.0, versions=[3, 2, 3, 1], splits=2, **EXACT)
    assert found["loss/logprob_gap_max"] == pytest.approx(0.1)
    assert compare([5.0], versions=[2], **EXACT) == {}
