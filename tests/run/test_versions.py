"""Steps behind policy versions."""

import math

import pytest

from agentrl_core.api.stores import StepRow, VersionRow
from agentrl_core.batching.signal import Signal
from agentrl_core.run.versions import TokenAges, step_of_version
from agentrl_core.types import Episode, Group, Interaction, Outcome, Record


def row(step, version, *, voided=False):
    return StepRow(run_id="run", step=step, version=version, groups=(), records=(), metrics={}, voided=voided)


@pytest.mark.parametrize(("version", "step"), [(0, 0), (1, 1), (2, 2), (3, 1), (4, 2), (5, None), (9, None)])
def test_a_version_leads_to_its_step_also_after_a_resumption(version, step):
    """The run made steps 1 and 2, went back to step 1 (version 3), and made step 2 again (version 4)."""
    assert step_of_version(version, [row(1, 1), row(2, 2, voided=True), row(2, 4)]) == step


def make_group(*versions, index=0):
    """A group of one record, with one call for each of `versions`; each is a list of (version, tokens)."""
    record = Record(
        id=f"r{index}", run_id="run", task_id="t", group_id="g", sample_index=0, outcome=Outcome.SCORED, reward=1.0
    )
    calls = tuple(
        Interaction(
            id=f"c{index}-{seq}",
            record_id=record.id,
            seq=seq,
            prompt_ids=(1,),
            output_ids=(2,) * sum(count for _, count in of_call),
            logprobs=(-1.0,) * sum(count for _, count in of_call),
            versions=tuple(of_call),
            messages=(),
            output={"role": "assistant", "content": "x"},
        )
        for seq, of_call in enumerate(versions)
    )
    return Group(
        id=f"g{index}", run_id="run", task_id="t", index=index, episodes=(Episode(record=record, interactions=calls),)
    )


def published(*steps):
    """Publications: the steps behind the versions 0, 1, 2, …"""
    return [VersionRow(version=version, step=step, published_at=0.0) for version, step in enumerate(steps)]


def test_ages_count_steps_where_versions_jump():
    """Versions 3 and 4 are the weights of step 2 again: nothing was void when the run was resumed twice."""
    ages = TokenAges(published(0, 1, 2, 2, 2))
    ages.publish(5, 3)
    ages.publish(6, 4)
    assert [ages.oldest(make_group([(version, 2)])) for version in range(7)] == [4, 3, 2, 2, 2, 1, 0]
    assert ages.oldest(make_group([(6, 1)], [(3, 3), (5, 1)])) == 2
    assert ages.oldest(make_group()) == 0


def test_tokens_of_a_void_version_are_infinitely_old():
    """Steps 2 and 3 (versions 2 and 3) were voided, and the run went on from step 1 as version 4."""
    ages = TokenAges(published(0, 1, 2, 3, 1))
    assert [ages.oldest(make_group([(version, 2)])) for version in range(5)] == [1, 0, math.inf, math.inf, 0]
    ages.publish(5, 2)
    assert ages.oldest(make_group([(1, 2)])) == 1
    assert ages.oldest(make_group([(5, 2)], [(4, 1), (3, 1)])) == math.inf


def test_metrics_of_ages_are_of_the_trained_tokens_alone():
    ages = TokenAges(published(0, 1, 2, 3))
    old, new = make_group([(0, 1)], index=0), make_group([(1, 1), (2, 1)], [(3, 1)], index=1)
    signal = Signal(
        sampled=(old, new), groups=(new,), advantages={"c1-0": 1.0, "c1-1": 1.0}, dropped={"flat": 1}, with_signal=1
    )
    assert ages.of_trained(signal) == {"rollout/token_age_max": 2.0, "rollout/token_age_min": 0.0}
    assert ages.of_trained(Signal(groups=(), advantages={}, dropped={}, with_signal=0)) == {}


def test_tokens_from_before_a_resumption_lag_by_steps():
    """The run made steps 1 and 2, was resumed there as version 5, and made step 3 as version 6."""
    ages = TokenAges(published(0, 1, 2))
    ages.publish(5, 2)
    before = make_group([(1, 3), (2, 1)])
    (episode,) = ages.aligned(before).episodes
    assert episode.interactions[0].versions == ((4, 3), (5, 1))
    assert ages.aligned(make_group([(5, 1)])).episodes[0].interactions[0].versions == ((5, 1),)
    ages.publish(6, 3)
    (episode,) = ages.aligned(make_group([(2, 2), (5, 3)], [(5, 1), (6, 1)])).episodes
    assert [call.versions for call in episode.interactions] == [((5, 5),), ((5, 1), (6, 1))]
    unmoved = make_group([(6, 1)])
    assert ages.aligned(unmoved) is unmoved


def test_a_group_from_before_a_resumption_is_as_old_as_its_steps():
    """The run made steps 1 and 2, and was resumed there as version 3: a token of version 1 is one step old."""
    ages = TokenAges(published(0, 1, 2))
    ages.publish(3, 2)
    before = make_group([(1, 1), (2, 1)])
    assert ages.oldest(before) == 1
    signal = Signal(groups=(ages.aligned(before),), advantages={"c0-0": 1.0}, dropped={}, with_signal=1)
    assert ages.of_trained(signal) == {"rollout/token_age_max": 1.0, "rollout/token_age_min": 0.0}
