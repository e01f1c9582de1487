"""Updates that would not be finite: whose fault it is, that nothing has changed, and what goes on without them."""

import copy

import attrs
import pytest
import torch

from agentrl_core.api.losses import LossOutput
from agentrl_core.batching.signal import Signal
from agentrl_core.errors import TrainingError
from agentrl_core.losses import AggregationConfig
from agentrl_core.losses.contract import is_taken
from agentrl_core.losses.grpo import GRPO
from agentrl_core.training.diagnosis import bisect
from agentrl_testing.policy import toy_policy

# Records are numbered in the order of their groups: g0r0 is 0, g0r1 is 1, …, g1r0 is 4 with groups of four.
SKIP = {"non_finite": "skip"}
SMALL = {"max_tokens_per_microbatch": 40}
"""Several micro-batches."""


@attrs.frozen
class Broken(GRPO):
    """Is not finite for some records, in one of several ways."""

    of: tuple[int, ...] = ()
    how: str = "nan"

    def loss(self, batch):
        output = GRPO.loss(self, batch)
        bad = torch.isin(batch.record, torch.tensor(self.of, dtype=torch.long))
        terms = output.per_token
        if self.how == "dropped":  # inf where the loss drops the token: inf x 0
            return attrs.evolve(output, per_token=terms.masked_fill(bad, torch.inf), keep=output.keep * ~bad)
        if self.how == "slope":  # finite, with an infinite slope
            steep = torch.sqrt((batch.logprobs - batch.logprobs.detach()).masked_fill(~bad, 1.0))
            return attrs.evolve(output, per_token=terms + torch.where(bad, steep, 0.0))
        if self.how == "huge":  # each gradient at a log-prob is finite, those of the weights are not
            return attrs.evolve(output, per_token=terms + bad * 3e38 * (batch.logprobs - batch.logprobs.detach()))
        return attrs.evolve(output, per_token=terms.masked_fill(bad, float(self.how)))


def state(learner):
    """Weights and optimizer state, bit by bit."""
    module = {name: value.clone() for name, value in learner.weights().module.state_dict().items()}
    return module, copy.deepcopy(learner._optimizer.state_dict()["state"])


def assert_same(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.fixture
def judged(learner):
    """Judge groups with an estimator of this learner; what the signal says can then be changed."""
    return lambda groups: learner().training_signal(groups)


@pytest.mark.parametrize(
    ("how", "of", "trainer"),
    [
        ("nan", (2,), {}),
        ("nan", (0, 5), SMALL),
        ("inf", (7,), SMALL),
        ("dropped", (3,), {}),
        ("slope", (2,), {}),
        ("slope", (0, 5), SMALL),
        ("huge", (6,), {}),
        ("huge", (0, 5), SMALL),
    ],
)
def test_exactly_the_records_that_are_not_finite_are_named_and_nothing_has_changed(learner, sampler, how, of, trainer):
    one, sound = learner(trainer=trainer), learner(trainer=trainer)
    groups = sampler.groups()
    for learning in (one, sound):  # so that the optimizer has a state
        learning.step(groups, step=1, version=2)
    before = state(one)
    one._updater._calculator = Broken(of=of, how=how)
    with pytest.raises(TrainingError, match="not be finite and was refused") as raised:
        one.step(groups, step=2, version=2)
    assert sorted(raised.value.culprits) == list(of)
    for index in of:
        assert f"g{index // 4}r{index % 4} (" in str(raised.value)
    assert_same(before, state(one))
    one._updater._calculator = GRPO()
    for learning in (one, sound):  # and the refused update leaves no trace in the next
        learning.step(groups, step=3, version=2)
    assert_same(state(sound), state(one))


@pytest.mark.parametrize(
    ("how", "aggregation"),
    [("nan", "token_mean"), ("slope", "seq_mean_token_mean"), ("huge", "seq_mean_token_sum")],
)
def test_skipping_takes_the_update_that_would_have_been_without_the_record(learner, sampler, how, aggregation):
    """The other records' tokens, advantages and places stay; the denominators are those of what is left."""
    groups = sampler.groups()
    trainer = SKIP | SMALL | {"lr": 0.0, "max_grad_norm": 1e9}
    changes = {"aggregation": AggregationConfig(aggregation=aggregation), "trainer": trainer}
    one, plain = learner(loss=Broken(of=(2, 4), how=how), **changes), learner(**changes)
    metrics = one.step(groups, step=1, version=0)
    signal = plain.training_signal(groups)
    gone = {item.id for place in ((0, 2), (1, 0)) for item in groups[place[0]].episodes[place[1]].interactions}
    left = {name: value for name, value in signal.advantages.items() if name not in gone}
    expected = plain.step(attrs.evolve(signal, advantages=left), step=1, version=0)
    found, wanted = ([weight.grad for weight in made.weights().module.parameters()] for made in (one, plain))
    scale = max(gradient.abs().max().item() for gradient in wanted)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5 * scale)
    assert metrics["loss/value"] == pytest.approx(expected["loss/value"], abs=1e-6)
    assert metrics["loss/grad_norm"] == pytest.approx(expected["loss/grad_norm"], rel=1e-4)
    assert metrics["loss/ratio_mean"] == pytest.approx(expected["loss/ratio_mean"], abs=1e-6)
    assert metrics["loss/tokens"] == expected["loss/tokens"]
    assert metrics["batch/records_not_finite"] == 2
    assert metrics["batch/updates_skipped"] == 0
    assert set(one.left_out) == {"g0r2", "g1r0"}
    assert one.left_out["g0r2"].startswith("loss nan" if how == "nan" else "gradient norm ")


def test_a_step_forgets_what_the_one_before_left_out(learner, sampler):
    one = learner(loss=Broken(of=(2,)), trainer=SKIP)
    one.step(sampler.groups(), step=1, version=0)
    assert one.left_out == {"g0r2": "loss nan"}
    one._updater._calculator = GRPO()
    metrics = one.step(sampler.groups(), step=2, version=1)
    assert one.left_out == {}
    assert metrics["batch/records_not_finite"] == 0


def test_an_update_of_which_nothing_is_left_is_skipped_and_the_step_goes_on(learner, sampler):
    groups = sampler.groups(count=2)
    one = learner(loss=Broken(of=(0, 1, 2, 3)), trainer=SKIP | {"updates": 2})  # the first group is the first update
    metrics = one.step(groups, step=1, version=0)
    assert metrics["batch/updates_skipped"] == 1
    assert one._optimizer.state_dict()["state"][0]["step"] == 1
    none = learner(loss=Broken(of=tuple(range(8))), trainer=SKIP)
    before = state(none)
    metrics = none.step(groups, step=1, version=0)
    assert_same(before, state(none))
    assert (metrics["batch/updates_skipped"], metrics["batch/records_not_finite"]) == (1, 8)
    assert "loss/value" not in metrics
    assert "loss/grad_norm" not in metrics


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_an_advantage_that_is_not_finite_names_its_record(learner, sampler, judged, value):
    groups = sampler.groups()
    signal = judged(groups)
    broken = attrs.evolve(signal, advantages=dict(signal.advantages) | {"g1r3t1": value})
    one = learner(trainer=SMALL)
    before = state(one)
    with pytest.raises(TrainingError, match=rf"Records: g1r3 \(advantage {value}\)\. "):
        one.step(broken, step=1, version=0)
    assert_same(before, state(one))


def test_a_logprob_of_the_engine_that_is_not_finite_names_its_record(learner, sampler):
    groups = sampler.groups()
    first, *others = groups[1].episodes[1].interactions
    spoilt = attrs.evolve(first, logprobs=(float("-inf"), *first.logprobs[1:]))
    episodes = list(groups[1].episodes)
    episodes[1] = attrs.evolve(episodes[1], interactions=(spoilt, *others))
    groups[1] = attrs.evolve(groups[1], episodes=tuple(episodes))
    with pytest.raises(TrainingError, match=r"Records: g1r1 \(engine's logprob -inf\)\. "):
        learner().step(groups, step=1, version=0)


def test_weights_that_are_not_finite_name_every_record(learner, sampler):
    one = learner(trainer=SKIP)
    with torch.no_grad():
        next(one.weights().module.parameters()).fill_(torch.nan)
    metrics = one.step(sampler.groups(), step=1, version=0)
    assert (metrics["batch/updates_skipped"], metrics["batch/records_not_finite"]) == (1, 8)
    assert one.left_out["g0r0"] == "learner's logprob nan"


def test_what_only_overflows_together_blames_nobody(learner, sampler):
    @attrs.frozen
    class Heavy(GRPO):
        def loss(self, batch):
            output = GRPO.loss(self, batch)
            return attrs.evolve(output, per_token=torch.full_like(output.per_token, 3e38) + 0 * batch.logprobs)

    one = learner(loss=Heavy(), aggregation=AggregationConfig(aggregation="seq_mean_token_sum"))
    before = state(one)
    with pytest.raises(
        TrainingError, match=r"No single record causes it; the update contains: g0r0 \(loss inf\), g0r1"
    ):
        one.step(sampler.groups(), step=1, version=0)
    assert_same(before, state(one))


@attrs.frozen
class Decoupled(Broken):
    """Reports how far the log-probs are from those before the step."""

    needs = frozenset({"proximal"})

    def loss(self, batch):
        output = Broken.loss(self, batch)
        moved = (batch.logprobs.detach() - batch.proximal_logprobs).abs()
        return attrs.evolve(output, metrics={"moved": (moved.sum(), batch.mask.sum())})


@pytest.mark.parametrize("updates", [1, 2])
def test_the_proximal_logprobs_of_those_left_stay_theirs(learner, sampler, updates):
    one = learner(loss=Decoupled(of=(0, 3, 5)), trainer=SKIP | SMALL | {"updates": updates, "lr": 0.0})
    assert one.step(sampler.groups(), step=1, version=0)["loss/moved"] == pytest.approx(0.0, abs=1e-6)
    assert len(one.left_out) == 3


def test_replayed_experts_fit_an_update_without_some_records(learner, sampler, tmp_path):
    from transformers import AutoModelForCausalLM

    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    directory = toy_policy(tmp_path / "moe", architecture="qwen3_moe", **experts)
    groups = attrs.evolve(sampler, model=AutoModelForCausalLM.from_pretrained(directory)).groups()
    trainer = SKIP | SMALL | {"routing_replay": True, "updates": 2}
    metrics = learner(directory=directory, loss=Broken(of=(5,)), trainer=trainer).step(groups, step=1, version=0)
    assert (metrics["batch/updates_skipped"], metrics["batch/records_not_finite"]) == (0, 1)


def test_bisecting_finds_all_who_are_to_blame_in_few_looks():
    looks = []

    def finite(records):
        looks.append(records)
        return not {3, 40} & set(records)

    assert bisect(range(64), finite) == {3, 40}
    assert len(looks) <= 2 * 2 * 6 + 1
    assert bisect([1, 2], lambda records: len(records) < 2) == {1, 2}  # only the sum is not finite


def test_a_gap_is_measured_on_tokens_of_lag_zero_only(learner, sampler):
    """By hand: the k3 estimate of KL(engine || learner), and the mean and largest difference."""
    groups = sampler.groups(count=1, size=2)
    (first, *others), episodes = groups[0].episodes[0].interactions, list(groups[0].episodes)
    offset = 0.25
    shifted = attrs.evolve(first, logprobs=tuple(value + offset for value in first.logprobs))
    stale = [
        attrs.evolve(item, logprobs=tuple(v - 5 for v in item.logprobs), versions=((0, len(item.logprobs)),))
        for item in others
    ]
    fresh = attrs.evolve(shifted, versions=((3, len(first.logprobs)),))
    episodes[0] = attrs.evolve(episodes[0], interactions=(fresh, *stale))
    rest = [attrs.evolve(item, versions=((0, len(item.output_ids)),)) for item in episodes[1].interactions]
    episodes[1] = attrs.evolve(episodes[1], interactions=tuple(rest))
    groups = [attrs.evolve(groups[0], episodes=tuple(episodes))]
    metrics = learner(trainer={"max_logprob_gap": 1.0}, filters=[]).step(groups, step=1, version=3)
    assert metrics["loss/logprob_gap_max"] == pytest.approx(offset, abs=1e-5)
    assert metrics["loss/logprob_gap_mean"] == pytest.approx(offset, abs=1e-5)
    ratio = 2.718281828459045**-offset
    assert metrics["loss/logprob_gap_kl"] == pytest.approx(ratio - 1 + offset, abs=1e-5)


def test_a_gap_is_the_largest_of_all_micro_batches(learner, sampler):
    (group,) = sampler.groups(count=1, size=3)
    one = learner(trainer={"max_tokens_per_microbatch": 1, "max_logprob_gap": 1.0, "lr": 0.0}, filters=[])
    for changed in range(3):
        episodes = list(group.episodes)
        calls = [
            attrs.evolve(item, logprobs=tuple(v + 0.5 for v in item.logprobs))
            for item in episodes[changed].interactions
        ]
        episodes[changed] = attrs.evolve(episodes[changed], interactions=tuple(calls))
        metrics = one.step([attrs.evolve(group, episodes=tuple(episodes))], step=1, version=0)
        assert metrics["loss/logprob_gap_max"] == pytest.approx(0.5, abs=1e-5)


def test_a_gap_is_that_of_the_update_that_took_place(learner, sampler):
    """What a refused update showed of the record to blame, and of the others a second time, does not count."""

    def shifted(episode, by):
        calls = [attrs.evolve(item, logprobs=tuple(v + by for v in item.logprobs)) for item in episode.interactions]
        return attrs.evolve(episode, interactions=tuple(calls))

    groups = [
        attrs.evolve(
            group, episodes=tuple(shifted(one, 0.5 if one.record.id == "g1r3" else 0.1) for one in group.episodes)
        )
        for group in sampler.groups()
    ]
    one = learner(loss=Broken(of=(7,), how="slope"), trainer=SKIP | SMALL | {"max_logprob_gap": 1.0})
    metrics = one.step(groups, step=1, version=0)
    assert one.left_out.keys() == {"g1r3"}
    assert metrics["loss/logprob_gap_mean"] == pytest.approx(0.1, abs=1e-5)
    assert metrics["loss/logprob_gap_max"] == pytest.approx(0.1, abs=1e-5)


def test_a_signal_of_no_group_is_a_step_without_update(learner):
    metrics = learner().step(Signal(groups=(), advantages={}, dropped={}, with_signal=0), step=1, version=0)
    assert "batch/records_not_finite" not in metrics
    assert metrics["loss/tokens_per_s"] == 0.0


def test_a_loss_without_metrics_has_ratios_all_the_same(learner, sampler):
    @attrs.frozen
    class Bare(GRPO):
        def loss(self, batch):
            return LossOutput(per_token=-batch.advantages * batch.logprobs, keep=batch.mask)

    metrics = learner(loss=Bare()).step(sampler.groups(), step=1, version=0)
    assert metrics["loss/ratio_share_0.98_1.02"] == 1.0
    own = [name.removeprefix("loss/") for name in metrics if name.startswith("loss/")]
    assert [name for name in own if not is_taken(name)] == []  # no loss may report something else by one of these
