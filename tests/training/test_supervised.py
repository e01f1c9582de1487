"""Weights by hand, batches, rates, and what a supervised loss may not read."""

import itertools
import random

import attrs
import pytest
import torch

from agentrl_core.batching.packing import pack
from agentrl_core.data.demonstrations import demonstration
from agentrl_core.errors import ConfigError, TrainingError
from agentrl_core.losses import AggregationConfig
from agentrl_core.losses.cross_entropy import CrossEntropy
from agentrl_core.losses.grpo import GRPO
from agentrl_core.models.tiny import build
from agentrl_core.training.demonstrations import Demonstrations
from agentrl_core.training.policy import Policy
from agentrl_core.training.supervised import SupervisedTrainer, TrainingPlan, batches, held_out_loss

TURNS = [("Say ab.", "ab"), ("And cd?", "cd cd"), ("And ef?", "ef ef ef")]


def chat(*weights, first="Say ab.", **fields):
    """Three turns with these weights."""
    messages = []
    for (question, answer), weight in zip(TURNS, weights, strict=True):
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer, "weight": weight})
    messages[0] = {"role": "user", "content": first}
    return {"messages": messages, **fields}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    build(path, seed=0, conversations=[chat(1, 1, 1)] * 3, size="0.1M", context_length=128)
    return path


@pytest.fixture
def policy(directory):
    """A random policy in float64, so that sums are exact enough to compare."""
    loaded = Policy.load(directory)
    loaded.model.double()
    return loaded


def converted(directory, policy, rows, **options):
    return Demonstrations(
        [demonstration(row, f"rows.jsonl:{line}") for line, row in enumerate(rows, start=1)],
        model_dir=directory,
        stop_token_ids=policy.stop_token_ids,
        context_length=policy.context_length,
        **options,
    )


def plan(**changes):
    return TrainingPlan(**({"steps": 4, "batch_size": 3, "lr": 1e-3} | changes))


@torch.no_grad()
def likelihoods(policy, sample):
    """Negative log-likelihood of each trained token, by a forward of the whole row. [L]."""
    logits = policy.model(torch.tensor([list(sample.ids)])).logits[0]
    logprobs = torch.log_softmax(logits, -1)
    return torch.stack([-logprobs[place - 1, sample.ids[place]] for place in sample.positions])


def first_loss(policy, demonstrations, **aggregation):
    trainer = SupervisedTrainer(
        policy, demonstrations, plan(batch_size=len(demonstrations)), aggregation=AggregationConfig(**aggregation)
    )
    return trainer.step()["loss/value"]


ROWS = [chat(1, 0.25, 0), chat(0, 0, 2, weight=3), chat(1, 1, 1, first="Please say ab.")]
WEIGHTS = [(1, 0.25), (6,), (1, 1, 1)]
"""Of the trained replies of each."""


def by_hand(policy, demonstrations):
    """Per row, the likelihoods of its replies: [(weight, [L]), …]."""
    rows = []
    for index, weights in enumerate(WEIGHTS):
        (sample,) = demonstrations.samples(index)
        values = dict(zip(sample.positions, likelihoods(policy, sample), strict=True))
        starts = [place for place in values if place - 1 not in values]
        ends = [place + 1 for place in values if place + 1 not in values]
        rows.append(
            [
                (weight, torch.stack([values[place] for place in range(start, end)]))
                for weight, start, end in zip(weights, starts, ends, strict=True)
            ]
        )
    return rows


def test_a_token_counts_as_often_as_its_weight(directory, policy):
    demonstrations = converted(directory, policy, ROWS)
    replies = list(itertools.chain.from_iterable(by_hand(policy, demonstrations)))
    total = sum(weight * values.sum() for weight, values in replies)
    count = sum(weight * len(values) for weight, values in replies)
    assert held_out_loss(policy, demonstrations, max_tokens=4096) == pytest.approx((total / count).item(), rel=1e-6)
    assert first_loss(policy, demonstrations) == pytest.approx((total / count).item(), rel=1e-6)


def test_a_weight_that_a_whole_chat_shares_plays_no_part_in_the_mean_over_chats(directory, policy):
    demonstrations = converted(directory, policy, ROWS)
    means = [
        sum(weight * values.sum() for weight, values in row) / sum(weight * len(values) for weight, values in row)
        for row in by_hand(policy, demonstrations)
    ]
    found = first_loss(policy, demonstrations, aggregation="seq_mean_token_mean")
    assert found == pytest.approx((sum(means) / 3).item(), rel=1e-6)


def test_weights_scale_what_is_summed_over_tokens(directory, policy):
    demonstrations = converted(directory, policy, ROWS)
    total = sum(weight * values.sum() for row in by_hand(policy, demonstrations) for weight, values in row)
    found = first_loss(policy, demonstrations, aggregation="seq_mean_token_sum")
    assert found == pytest.approx((total / 3).item(), rel=1e-6)


def test_a_sequence_may_be_a_reply(directory, policy):
    demonstrations = converted(directory, policy, ROWS)
    replies = list(itertools.chain.from_iterable(by_hand(policy, demonstrations)))
    found = first_loss(policy, demonstrations, aggregation="seq_mean_token_mean", unit="interaction")
    assert found == pytest.approx((sum(values.mean() for _, values in replies) / len(replies)).item(), rel=1e-6)


def gradient(policy, demonstrations, *, merge, max_tokens):
    """Loss and gradient of all rows, with and without shared beginnings computed once."""
    from agentrl_core.training import supervised

    packed = []

    def remembering(*args, **kwargs):
        packed.append(pack(*args, **(kwargs | {"merge": merge})))
        return packed[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervised, "pack", remembering)
        trainer = SupervisedTrainer(
            policy, demonstrations, plan(lr=0.0, max_grad_norm=1e9, max_tokens=max_tokens, batch_size=9)
        )
        value = trainer.step()["loss/value"]
    return value, [weight.grad.clone() for weight in policy.model.parameters()], packed[-1].tokens


def test_shared_beginnings_change_neither_loss_nor_gradient(directory, policy):
    rows = [*ROWS, chat(0.5, 1, 0), chat(1, 1, 1)]
    demonstrations = converted(directory, policy, rows)
    merged, gradients, tokens = gradient(policy, demonstrations, merge=True, max_tokens=4096)
    for max_tokens in (4096, 1):  # in one micro-batch, and each row alone
        value, others, unmerged_tokens = gradient(policy, demonstrations, merge=False, max_tokens=max_tokens)
        assert tokens < 0.6 * unmerged_tokens
        assert merged == pytest.approx(value, abs=1e-6)
        largest = max(float(other.abs().max()) for other in others)
        for mine, other in zip(gradients, others, strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-5 * largest + 1e-6)


@pytest.mark.parametrize("pool", [1, 3])
def test_every_demonstration_is_seen_once_per_pass(pool):
    class Lengths:
        def __len__(self):
            return 50

        def length(self, index):
            return index % 7

    endless = batches(Lengths(), 8, random.Random(0), pool=pool)
    for _ in range(2):
        seen = list(itertools.chain.from_iterable(itertools.islice(endless, 7)))
        assert sorted(seen) == list(range(50))


def test_skipped_steps_take_their_batches_with_them(directory, policy):
    rows = [chat(1, 1, 1, first=f"Say {number}.") for number in range(7)]
    whole, later = (SupervisedTrainer(policy, converted(directory, policy, rows), plan(), seed=3) for _ in range(2))
    for _ in range(4):
        next(whole._batches)
    later.skip(4)
    assert [next(whole._batches) for _ in range(5)] == [next(later._batches) for _ in range(5)]
    assert later.step()["loss/lr"] == pytest.approx(plan().rate(5))


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("linear", [0.25, 0.5 * 0.991, 0.973, 0.55, 0.109]),
        ("cosine", [0.25, 0.5 * 0.999778, 0.998002, 0.55, 0.100222]),
        ("constant", [0.25, 0.5, 1.0, 1.0, 1.0]),
    ],
)
def test_the_rate_rises_then_falls_to_a_tenth(schedule, rates):
    made = plan(lr=1.0, steps=100, warmup_steps=4, schedule=schedule)
    assert [made.rate(step) for step in (1, 2, 4, 51, 100)] == pytest.approx(rates, abs=1e-6)
    assert plan(lr=1.0, warmup_steps=0).rate(1) == 1.0


def test_a_loss_that_reads_what_sampling_leaves_is_refused(directory, policy):
    @attrs.frozen
    class NeedsReference(CrossEntropy):
        needs = frozenset({"reference"})

    rows = converted(directory, policy, [chat(1, 1, 1)])
    with pytest.raises(ConfigError, match=r"loss: GRPO .*use cross_entropy"):
        SupervisedTrainer(policy, rows, plan(), loss=GRPO())
    with pytest.raises(ConfigError, match=r"loss: NeedsReference needs reference"):
        SupervisedTrainer(policy, rows, plan(), loss=NeedsReference())


def test_a_loss_that_fails_is_named_before_anything_is_trained(directory, policy):
    @attrs.frozen
    class Failing(CrossEntropy):
        first: bool

        def loss(self, batch):
            if self.first or len(batch.mask) > 2:  # the one that asks what it reads has two tokens
                raise KeyError("labels")
            return CrossEntropy.loss(self, batch)

    rows = converted(directory, policy, [chat(1, 1, 1)])
    with pytest.raises(ConfigError, match=r"loss: Failing raised KeyError: 'labels' \(.*test_supervised.py:\d+\)"):
        SupervisedTrainer(policy, rows, plan(), loss=Failing(first=True))
    later = SupervisedTrainer(policy, rows, plan(), loss=Failing(first=False))
    with pytest.raises(TrainingError, match=r"loss: Failing raised KeyError: 'labels' \(.*test_supervised.py:\d+\)"):
        later.step()


def test_an_update_that_is_not_finite_names_its_rows(directory, policy):
    rows = converted(directory, policy, [chat(1, 1, 1)])
    trainer = SupervisedTrainer(policy, rows, plan(batch_size=1))
    with torch.no_grad():
        next(policy.model.parameters())[:] = torch.nan
    with pytest.raises(TrainingError, match=r"step 1: .*rows\.jsonl:1"):
        trainer.step()
