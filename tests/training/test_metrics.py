import math

import pytest
import torch

from agentrl_core.api.losses import LossBatch
from agentrl_core.batching.signal import Signal
from agentrl_core.losses.trust_region import ratio_metrics
from agentrl_core.training.metrics import RATIO_SHARES, Means, ratio_shares, rollout_metrics
from agentrl_core.types import Episode, FinishReason, Group, Interaction, Record


def call(record, seq, *runs, **changes):
    """An interaction whose output was sampled from `(version, tokens)…`."""
    tokens = sum(count for _, count in runs)
    fields = {
        "id": f"{record}-{seq}",
        "record_id": record,
        "seq": seq,
        "prompt_ids": (1,),
        "output_ids": (2,) * tokens,
        "logprobs": (-1.0,) * tokens,
        "versions": runs,
        "messages": (),
        "output": {"role": "assistant", "content": ""},
    }
    return Interaction(**(fields | changes))


def episode(name, reward, *interactions):
    record = Record(id=name, run_id="run", task_id="t", group_id="g", sample_index=0, reward=reward)
    return Episode(record=record, interactions=interactions)


def test_rewards_lag_and_calls_are_those_of_the_groups():
    groups = [
        Group(
            id="g",
            run_id="run",
            task_id="t",
            index=0,
            episodes=(
                episode(
                    "a",
                    1.0,
                    call("a", 0, (2, 1), (4, 3), output={"role": "assistant", "tool_calls": [{}, {}]}),
                    call("a", 1, (5, 4), finish_reason=FinishReason.LENGTH),
                ),
                episode("b", 0.0, call("b", 0, (0, 9), finish_reason=FinishReason.ABORT)),  # in no loss, so in no lag
            ),
        )
    ]
    signal = Signal(groups=(), advantages={}, dropped={"zero_variance": 3}, with_signal=2)
    metrics = rollout_metrics(groups, signal, version=5)
    assert metrics["rollout/lag_mean"] == pytest.approx((3 * 1 + 1 * 3 + 0 * 4) / 8)
    assert metrics["rollout/lag_max"] == 3.0
    assert metrics["rollout/tokens"] == 8.0
    assert (metrics["reward/mean"], metrics["reward/std"]) == (0.5, 0.5)
    assert metrics["rollout/tool_calls_per_episode"] == 1.0
    assert metrics["rollout/llm_calls_per_episode"] == 1.5
    assert metrics["rollout/replies_cut"] == pytest.approx(1 / 3)
    assert (metrics["rollout/groups"], metrics["rollout/groups_with_signal"]) == (1.0, 2.0)
    assert metrics["rollout/groups_dropped/zero_variance"] == 3.0


def test_means_weigh_by_count_and_leave_out_what_was_never_counted():
    means = Means()
    means.add("ratio", 2.0, 1)
    means.add("ratio", 6.0, 3)
    means.add("value", 1.5)
    means.add("nothing", 0.0, 0)
    assert means.means() == {"ratio": 2.0, "value": 1.5}
    assert not any(math.isnan(value) for value in means.means().values())


def test_tokens_are_counted_by_lag_and_the_oldest_together():
    record = episode("a", 1.0, call("a", 0, (12, 5), (10, 2)), call("a", 1, (4, 3)), call("a", 2, (0, 4)))
    group = Group(id="g", run_id="run", task_id="t", index=0, episodes=(record,))
    metrics = rollout_metrics([group], Signal(groups=(), advantages={}, dropped={}, with_signal=0), version=12)
    lags = {name: value for name, value in metrics.items() if "of_lag" in name}
    counts = [5, 0, 2, 0, 0, 0, 0, 0, 7]
    names = [*map(str, range(8)), "8_or_more"]
    assert lags == {f"rollout/tokens_of_lag/{name}": count for name, count in zip(names, counts, strict=True)}


def ratios(values, *, mask=None, advantages=None):
    """A batch with these importance ratios."""
    ratio = torch.tensor(values, dtype=torch.float64)
    index = torch.zeros(len(ratio), dtype=torch.long)
    return LossBatch(
        logprobs=ratio.log() - 1.0,
        behaviour_logprobs=torch.full_like(ratio, -1.0),
        advantages=torch.tensor(advantages or [1.0] * len(ratio), dtype=torch.float64),
        mask=torch.tensor(mask or [1.0] * len(ratio), dtype=torch.float64),
        sequence=index,
        num_sequences=1,
        record=index,
        group=index,
        lag=index,
    )


def test_each_ratio_is_in_its_bin_and_masked_tokens_in_none():
    values = [0.01, 0.6, 0.85, 0.95, 1.0, 1.01, 1.05, 1.15, 1.3, 1.7, 9.0, 9.0]
    shares = ratio_shares(ratios(values, mask=[1.0] * 11 + [0.0]))
    assert list(shares) == list(RATIO_SHARES)
    assert [count for count, _ in shares.values()] == [1, 1, 1, 1, 2, 1, 1, 1, 1, 1]
    assert {total for _, total in shares.values()} == {11}
    assert shares["ratio_share_0.98_1.02"] == (2, 11)


def test_clip_fractions_are_told_apart_by_the_sign_of_the_advantage():
    batch = ratios([1.0] * 6, advantages=[1.0, 2.0, 3.0, -1.0, 0.0, -1.0], mask=[1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    cut = torch.tensor([True, True, False, True, True, True])
    found = {
        name: (part.item(), count.item()) for name, (part, count) in ratio_metrics(batch, torch.ones(6), cut).items()
    }
    assert found["clip_fraction"] == (4, 5)
    assert found["clip_fraction_positive"] == (2, 3)
    assert found["clip_fraction_negative"] == (1, 1)
