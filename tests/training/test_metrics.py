import math

import pytest

from agentrl_core.batching.signal import Signal
from agentrl_core.training.metrics import Means, rollout_metrics
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
                    call("a", 1, (5, 4)),
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
