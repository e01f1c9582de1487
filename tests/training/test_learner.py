import random

import attrs
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl_core.api.kept_tokens import mask_of
from agentrl_core.api.losses import LossOutput
from agentrl_core.batching import advantages
from agentrl_core.batching.packing import pack
from agentrl_core.batching.signal import Signal
from agentrl_core.errors import ConfigError, TrainingError
from agentrl_core.losses import AggregationConfig
from agentrl_core.losses.cross_entropy import CrossEntropy
from agentrl_core.losses.grpo import GRPO
from agentrl_core.losses.gspo import GSPO
from agentrl_core.losses.minirl import MiniRL
from agentrl_core.training.metrics import RATIO_SHARES
from agentrl_testing.policy import toy_policy

METRICS = {
    "reward/mean",
    "reward/std",
    "rollout/groups",
    "rollout/groups_with_signal",
    "rollout/tool_calls_per_episode",
    "rollout/llm_calls_per_episode",
    "rollout/replies_cut",
    "rollout/tokens",
    "rollout/lag_mean",
    "rollout/lag_max",
    "rollout/tokens_of_lag/0",
    "loss/value",
    "loss/entropy",
    "loss/clip_fraction",
    "loss/clip_fraction_positive",
    "loss/clip_fraction_negative",
    "loss/ratio_mean",
    "loss/grad_norm",
    "loss/logprob_gap_max",
    "loss/logprob_gap_mean",
    "loss/logprob_gap_p50",
    "loss/logprob_gap_p99",
    "loss/logprob_gap_kl",
    "loss/tokens",
    "loss/tokens_per_s",
    "loss/tokens_per_cpu_s",
    "loss/lr",
    "time/train_s",
    "time/train_cpu_s",
    "batch/rows",
    "batch/sequences",
    "batch/records_not_finite",
    "batch/updates_skipped",
    "batch/merge_ratio",
    "batch/tokens",
    "fidelity/exact_share",
} | {f"loss/{name}" for name in RATIO_SHARES}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_a_step_without_learning_rate_leaves_the_weights_bit_by_bit(learner, sampler, weights):
    frozen = learner(trainer={"lr": 0.0})
    before = weights(frozen)
    metrics = frozen.step(sampler.groups(), step=1, version=0)
    assert same(before, weights(frozen))
    assert metrics["loss/grad_norm"] > 0


def test_a_step_with_learning_rate_raises_what_was_rewarded(learner, sampler, weights):
    trained = learner()
    before = weights(trained)
    groups = sampler.groups(seed=3)
    trained.step(groups, step=1, version=0)
    assert not same(before, weights(trained))
    # A second look at the same tokens: advantage-weighted ratios have risen above those of on-policy tokens.
    again = trained.step(groups, step=2, version=1)
    assert again["loss/value"] < -1e-4


def test_every_number_of_a_step_is_reported(learner, sampler):
    groups = sampler.groups(count=2, size=4)
    metrics = learner().step(groups, step=1, version=0)
    assert set(metrics) == METRICS
    episodes = [episode for group in groups for episode in group.episodes]
    tokens = sum(len(item.output_ids) for episode in episodes for item in episode.interactions)
    assert metrics["rollout/tokens"] == metrics["loss/tokens"] == tokens
    assert metrics["batch/rows"] == len(episodes)
    assert metrics["batch/sequences"] == 2 * len(episodes)  # of two calls each
    assert metrics["rollout/tool_calls_per_episode"] == 1.0
    assert metrics["rollout/llm_calls_per_episode"] == 2.0
    assert metrics["reward/mean"] == pytest.approx(sum(e.record.reward for e in episodes) / len(episodes))
    assert metrics["rollout/groups"] == metrics["rollout/groups_with_signal"] == 2.0
    assert metrics["rollout/lag_max"] == 0.0
    assert metrics["loss/ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["loss/value"] == pytest.approx(0.0, abs=0.7)  # on-policy: minus the mean advantage per token


def test_the_learner_agrees_with_the_sampler(learner, sampler):
    assert 0.0 < learner().step(sampler.groups(), step=1, version=0)["loss/logprob_gap_max"] < 1e-5


def test_each_interaction_is_scored_at_the_temperature_it_was_sampled_at(learner, sampler):
    groups = [
        *sampler.groups(count=1),
        *attrs.evolve(sampler, temperature=0.7).groups(count=1, seed=1),
        *attrs.evolve(sampler, temperature=1.4).groups(count=1, seed=2),
    ]
    assert learner().step(groups, step=1, version=0)["loss/logprob_gap_max"] < 1e-5


def test_a_temperature_other_than_the_recorded_one_stops_the_run(learner, sampler):
    groups = attrs.evolve(sampler, temperature=0.7, recorded=1.0).groups()
    with pytest.raises(TrainingError, match="temperature"):
        learner().step(groups, step=1, version=0)


@pytest.mark.parametrize("attention", ["auto", "rows", "dfs"])
def test_the_learner_agrees_with_a_sampler_of_few_tokens(learner, sampler, attention):
    """With their sampling masks; records of other masks, or of none, may share tokens with them."""
    groups = [
        *attrs.evolve(sampler, top_k=4).groups(count=1),
        *attrs.evolve(sampler, top_k=30, temperature=0.7).groups(count=1),
        *sampler.groups(count=1),
    ]
    metrics = learner(trainer={"attention": attention}).step(groups, step=1, version=0)
    assert metrics["loss/logprob_gap_max"] < 1e-5
    assert 0 < metrics["loss/ratio_mean"] < 1 + 1e-5


def test_without_its_masks_a_truncated_distribution_would_not_agree(learner, sampler):
    def without_masks(item):
        return attrs.evolve(item, kept=(), sampling=attrs.evolve(item.sampling, top_k=0))

    with pytest.raises(TrainingError, match=r"trainer\.max_logprob_gap"):
        learner().step(changed(attrs.evolve(sampler, top_k=4).groups(), without_masks), step=1, version=0)


def test_tokens_that_were_certain_are_counted(learner, sampler):
    assert "loss/certain_share" not in learner().step(sampler.groups(), step=1, version=0)
    few = attrs.evolve(sampler, top_k=3).groups()
    assert learner().step(few, step=1, version=0)["loss/certain_share"] == 0.0
    assert learner().step(certain(few), step=1, version=0)["loss/certain_share"] == 1.0


def certain(groups):
    """The groups as if every token had been the only one left."""

    def change(item):
        masks = tuple(mask_of([token]) for token in item.output_ids)
        return attrs.evolve(item, kept=masks, logprobs=(0.0,) * len(masks))

    return changed(groups, change)


def changed(groups, change):
    """The groups with every interaction changed."""
    return [
        attrs.evolve(
            group,
            episodes=tuple(
                attrs.evolve(episode, interactions=tuple(map(change, episode.interactions)))
                for episode in group.episodes
            ),
        )
        for group in groups
    ]


def falsified(groups, *, record="g0r2", turn=1, token=1, by=0.01):
    """The groups with one behaviour log-prob changed."""

    def change(item):
        if item.id != f"{record}t{turn}":
            return item
        logprobs = list(item.logprobs)
        logprobs[token] += by
        return attrs.evolve(item, logprobs=tuple(logprobs))

    return changed(groups, change)


def test_a_wrong_behaviour_logprob_stops_the_run_and_is_named(learner, sampler, weights):
    strict = learner()
    before = weights(strict)
    with pytest.raises(TrainingError, match=r"record g0r2, interaction g0r2t1, output token 1 "):
        strict.step(falsified(sampler.groups()), step=1, version=0)
    assert same(before, weights(strict))


def test_a_wrong_behaviour_logprob_is_found_in_every_micro_batch(learner, sampler, weights):
    groups = sampler.groups(count=2, size=4)
    strict = learner(trainer={"max_tokens_per_microbatch": 1})
    before = weights(strict)
    for name in (episode.record.id for group in groups for episode in group.episodes):
        with pytest.raises(TrainingError, match=f"record {name}, interaction {name}t1, output token 1 "):
            strict.step(falsified(groups, record=name), step=1, version=0)
    assert same(before, weights(strict))


def test_a_stale_token_may_differ(learner, sampler):
    metrics = learner().step(falsified(sampler.groups()), step=1, version=2)
    assert "loss/logprob_gap_max" not in metrics  # nothing was compared
    assert metrics["rollout/lag_mean"] == metrics["rollout/lag_max"] == 2.0


def test_without_signal_nothing_is_updated(learner, sampler, weights):
    idle = learner()
    before = weights(idle)
    groups = sampler.groups(count=1)
    flat = [
        attrs.evolve(
            groups[0],
            episodes=tuple(
                attrs.evolve(item, record=attrs.evolve(item.record, reward=1.0)) for item in groups[0].episodes
            ),
        )
    ]
    metrics = idle.step(flat, step=1, version=0)
    assert same(before, weights(idle))
    assert metrics["rollout/groups_with_signal"] == 0.0
    assert metrics["rollout/groups_dropped/zero_variance"] == 1.0
    assert "loss/value" not in metrics


@pytest.mark.parametrize(
    "options",
    [
        {"aggregation": "token_mean"},
        {"aggregation": "seq_mean_token_mean"},
        {"aggregation": "seq_mean_token_sum", "unit": "interaction"},
        {"aggregation": "constant", "horizon": 16},
        {"aggregation": "agentcpm_rows"},
    ],
    ids=lambda options: options["aggregation"],
)
def test_neither_loss_nor_gradient_depends_on_micro_batches(learner, sampler, options):
    groups = sampler.groups(count=2, size=3)
    gradients, values, forwarded = [], [], []
    for max_tokens in (1, 25, 10_000):  # one record at a time; some of a group together; all in one trie
        one = learner(
            trainer={"lr": 0.0, "max_tokens_per_microbatch": max_tokens, "max_grad_norm": 1e9},
            aggregation=AggregationConfig(**options),
        )
        metrics = one.step(groups, step=1, version=0)
        forwarded.append(metrics["batch/tokens"])
        values.append(metrics["loss/value"])
        gradients.append(torch.cat([weight.grad.flatten() for weight in one.weights().module.parameters()]))
    assert forwarded[0] > forwarded[1] > forwarded[2]
    assert values[1:] == pytest.approx([values[0]] * 2, abs=1e-6)
    scale = gradients[0].abs().max()
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], rtol=0, atol=1e-5 * scale.item())


def test_groups_share_smaller_passes_of_a_large_model_on_a_cpu(learner, sampler, monkeypatch):
    passes = []

    def spy(*arguments, **options):
        passes.append(len((update := pack(*arguments, **options)).micro_batches))
        return update

    groups = sampler.groups(count=3, size=3)
    monkeypatch.setattr("agentrl_core.training.learner.pack", spy)
    monkeypatch.setattr("agentrl_core.training.learner._JOINED", 1)
    learner().step(groups, step=1, version=0)
    monkeypatch.setattr("agentrl_core.training.learner._LARGE", 1)
    learner().step(groups, step=1, version=0)
    assert passes == [1, 3]


def test_a_loss_of_whole_sequences_sees_all_calls_of_a_record_however_small_the_micro_batches(learner, sampler):
    groups = [
        attrs.evolve(group, episodes=tuple(map(apart, group.episodes))) for group in sampler.groups(count=2, size=3)
    ]
    gradients = []
    for max_tokens in (1, 10_000):
        one = learner(
            loss=GSPO(clip=0.2),
            aggregation=AggregationConfig(aggregation="seq_mean_token_mean"),
            trainer={"lr": 0.0, "max_tokens_per_microbatch": max_tokens, "max_grad_norm": 1e9, "max_logprob_gap": 9},
        )
        one.step(groups, step=1, version=0)
        gradients.append(torch.cat([weight.grad.flatten() for weight in one.weights().module.parameters()]))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=1e-5 * gradients[0].abs().max().item())


def apart(episode):
    """Make the second call a dialogue of its own, whose first token is another; the ratios are no longer 1."""
    first, second = episode.interactions
    alone = attrs.evolve(second, parent=None, prompt_ids=(7, *first.prompt_ids, *first.output_ids, *second.prompt_ids))
    return attrs.evolve(episode, interactions=(first, alone))


def test_the_gradient_is_reinforce_by_hand(learner, sampler, model_dir):
    groups = sampler.groups(count=1, size=3)
    one = learner(trainer={"lr": 0.0, "max_grad_norm": 1e9}, filters=[])
    one.step(groups, step=1, version=0)
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    rewards = torch.tensor([episode.record.reward for episode in groups[0].episodes])
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    total, tokens = torch.zeros(()), 0
    for episode, advantage in zip(groups[0].episodes, advantages, strict=True):
        for item in episode.interactions:
            ids = torch.tensor([episode.full_ids(item)])
            count = len(item.output_ids)
            logprobs = torch.log_softmax(model(ids).logits[0, -count - 1 : -1], -1)
            total = total - advantage * logprobs.gather(1, ids[0, -count:, None]).sum()
            tokens += count
    (total / tokens).backward()
    for (name, found), (_, expected) in zip(
        one.weights().module.named_parameters(), model.named_parameters(), strict=True
    ):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-6, msg=name)


def forked(group, sampler):
    """Let the first reply of every episode be continued a second time."""
    episodes = []
    for number, episode in enumerate(group.episodes):
        trunk, first = episode.interactions
        prompt = (number, 5)
        output, logprobs, _ = sampler._sample(random.Random(number), [*episode.full_ids(trunk), *prompt], 3)
        changes = {"id": f"{first.id}b", "seq": 2, "prompt_ids": prompt, "output_ids": tuple(output)}
        second = attrs.evolve(first, logprobs=tuple(logprobs), versions=((0, 3),), **changes)
        episodes.append(attrs.evolve(episode, interactions=(trunk, first, second)))
    return attrs.evolve(group, episodes=tuple(episodes))


@pytest.mark.parametrize("style", ["individual", "concat"])
@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_sum", "seq_mean_token_mean"])
def test_a_style_has_the_gradient_of_a_row_for_each_call(learner, sampler, model_dir, style, aggregation):
    """By hand, one plain forward per call; concat averages over the two dialogues of a record, not its three calls."""
    group = forked(sampler.groups(count=1, size=2)[0], sampler)
    one = learner(
        trainer={"lr": 0.0, "max_grad_norm": 1e9},
        filters=[],
        advantage=advantages.LeaveOneOut(),
        aggregation=AggregationConfig(aggregation=aggregation, unit="sequence"),
        export_style=style,
    )
    metrics = one.step([group], step=1, version=0)
    assert (metrics["batch/rows"], metrics["batch/sequences"]) == (4, 6 if style == "individual" else 4)
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    first, second = (episode.record.reward for episode in group.episodes)
    sequences = []  # (sum of the tokens' losses, tokens)
    for episode, advantage in zip(group.episodes, (first - second, second - first), strict=True):
        losses = []
        for item in episode.interactions:
            count = len(item.output_ids)
            ids = torch.tensor([episode.full_ids(item)])
            logprobs = torch.log_softmax(model(ids).logits[0, -count - 1 : -1], -1)
            losses.append((-advantage * logprobs.gather(1, ids[0, -count:, None]).sum(), count))
        if style == "concat":
            (trunk, tokens), (left, more), branch = losses
            losses = [(trunk + left, tokens + more), branch]
        sequences.extend(losses)
    loss = {
        "token_mean": lambda: sum(total for total, _ in sequences) / sum(count for _, count in sequences),
        "seq_mean_token_sum": lambda: sum(total for total, _ in sequences) / len(sequences),
        "seq_mean_token_mean": lambda: sum(total / count for total, count in sequences) / len(sequences),
    }[aggregation]()
    loss.backward()
    for (name, found), (_, expected) in zip(
        one.weights().module.named_parameters(), model.named_parameters(), strict=True
    ):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_what_was_judged_before_is_trained_as_it_is(learner, sampler, weights):
    at_once, apart = learner(), learner()
    groups = sampler.groups()
    metrics = at_once.step(groups, step=1, version=0)
    again = apart.step(Signal.joined([apart.training_signal([group]) for group in reversed(groups)]), step=1, version=0)
    assert same(weights(at_once), weights(apart))
    assert {name: value for name, value in again.items() if not name.endswith("_s")} == {
        name: value for name, value in metrics.items() if not name.endswith("_s")
    }


def test_equal_steps_give_equal_weights(learner, sampler, weights):
    ends = []
    for _ in range(2):
        one = learner(trainer={"updates": 2})
        for step in (1, 2):
            one.step(sampler.groups(seed=step), step=step, version=2)
        ends.append(weights(one))
    assert same(*ends)


def test_updates_split_the_step(learner, sampler):
    once, twice = learner(trainer={"updates": 1}), learner(trainer={"updates": 2})
    groups = sampler.groups(count=4, size=3)
    once.step(groups, step=1, version=0)
    metrics = twice.step(groups, step=1, version=0)
    # The second update sees weights that the first has moved.
    assert metrics["loss/ratio_mean"] != pytest.approx(1.0, abs=1e-6)
    assert twice._optimizer.state_dict()["state"][0]["step"] == 2
    assert once._optimizer.state_dict()["state"][0]["step"] == 1


def test_the_learning_rate_warms_up_by_steps(learner, sampler):
    one = learner(trainer={"lr": 4e-4, "warmup_steps": 4})
    rates = [one.step(sampler.groups(), step=step, version=9)["loss/lr"] for step in (1, 2, 4, 5)]
    assert rates == pytest.approx([1e-4, 2e-4, 4e-4, 4e-4])


def test_a_step_is_taken_at_the_rate_that_it_reports(learner, sampler, weights):
    ends = []
    for trainer in ({"lr": 4e-4, "warmup_steps": 4}, {"lr": 1e-4}):
        one = learner(trainer=trainer)
        one.step(sampler.groups(), step=1, version=0)
        ends.append(weights(one))
    assert same(*ends)


def test_a_large_gradient_is_cut_to_the_norm_allowed_and_reported_whole(learner, sampler):
    found = []
    for limit in (1e9, 1e-3):
        one = learner(trainer={"lr": 0.0, "max_grad_norm": limit})
        reported = one.step(sampler.groups(), step=1, version=0)["loss/grad_norm"]
        gradient = torch.cat([weight.grad.flatten() for weight in one.weights().module.parameters()])
        found.append((reported, gradient.norm().item()))
    assert found[0][1] == pytest.approx(found[0][0], rel=1e-3)
    assert found[1] == pytest.approx((found[0][0], 1e-3), rel=1e-2)


def test_adamw_decays_and_remembers_as_configured(learner, sampler, weights):
    trainer = {"lr": 1e-2, "betas": (0.5, 0.6)}
    plain, decayed = learner(trainer=trainer), learner(trainer=trainer | {"weight_decay": 0.5})
    before = weights(plain)
    for one in (plain, decayed):
        one.step(sampler.groups(), step=1, version=0)
    found, expected = weights(decayed), weights(plain)
    for name, start in before.items():
        torch.testing.assert_close(found[name], expected[name] - 1e-2 * 0.5 * start, rtol=0, atol=1e-6, msg=name)
    (group,) = plain._optimizer.param_groups
    assert group["betas"] == (0.5, 0.6)


@attrs.frozen
class Exploding(GRPO):
    """A loss that is not finite for one record."""

    record = 2

    def loss(self, batch):
        output = GRPO.loss(self, batch)
        bad = torch.where(batch.record == self.record, torch.inf, 0.0)
        return attrs.evolve(output, per_token=output.per_token + bad)


def test_a_loss_that_is_not_finite_is_refused_with_its_record(learner, sampler, weights):
    one = learner(loss=Exploding())
    before = weights(one)
    with pytest.raises(TrainingError, match=r"not be finite.* Records: g0r2 \(loss inf\)\. "):
        one.step(sampler.groups(), step=1, version=0)
    assert same(before, weights(one))


@attrs.frozen
class Steep(GRPO):
    """A loss of finite value with an infinite slope."""

    def loss(self, batch):
        output = GRPO.loss(self, batch)
        return attrs.evolve(output, per_token=output.per_token + torch.sqrt(batch.logprobs - batch.logprobs.detach()))


def test_a_gradient_that_is_not_finite_is_refused(learner, sampler, weights):
    one = learner(loss=Steep())
    before = weights(one)
    with pytest.raises(TrainingError, match=r"not be finite.* Records: g0r0 \(gradient norm (inf|nan)\), g0r1 "):
        one.step(sampler.groups(), step=1, version=0)
    assert same(before, weights(one))


@attrs.frozen
class Decoupled(GRPO):
    """Records how far the policy has moved since the step began."""

    needs = frozenset({"proximal"})

    def loss(self, batch):
        output = GRPO.loss(self, batch)
        moved = (batch.logprobs.detach() - batch.proximal_logprobs).abs()
        return attrs.evolve(output, metrics={"moved": (moved.sum(), batch.mask.sum())})


def test_proximal_logprobs_are_those_before_the_step(learner, sampler):
    groups = sampler.groups(count=4)
    once = learner(loss=Decoupled(), trainer={"updates": 1}).step(groups, step=1, version=0)
    twice = learner(loss=Decoupled(), trainer={"updates": 2}).step(groups, step=1, version=0)
    assert once["loss/moved"] == 0.0
    assert twice["loss/moved"] > 1e-4


def test_a_loss_that_needs_what_there_is_not_is_refused_at_once(learner):
    @attrs.frozen
    class Valued(GRPO):
        needs = frozenset({"values"})

        def loss(self, batch):
            return LossOutput(per_token=batch.logprobs, keep=batch.mask)

    with pytest.raises(ConfigError, match="Valued needs values"):
        learner(loss=Valued())


def test_a_folder_without_a_model_is_refused(learner, tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json"):
        learner(directory=tmp_path)


@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama"])
@pytest.mark.parametrize("loss", [GRPO(), CrossEntropy()], ids=lambda loss: type(loss).__name__)
def test_any_architecture_learns(architecture, loss, learner, sampler, tmp_path):
    directory = toy_policy(tmp_path / architecture, architecture=architecture, tied=architecture != "llama")
    model = AutoModelForCausalLM.from_pretrained(directory)
    groups = attrs.evolve(sampler, model=model).groups()
    one = learner(directory=directory, loss=loss, trainer={"lr": 2e-3})
    values = [one.step(groups, step=step, version=step - 1)["loss/value"] for step in range(1, 6)]
    assert values[-1] < values[0] - 0.01
    assert one.cpu_seconds > 0


def test_on_policy_minirl_takes_the_step_of_grpo(learner, sampler, weights):
    ends = []
    for loss in (GRPO(), MiniRL()):
        one = learner(loss=loss)
        one.step(sampler.groups(), step=1, version=0)
        ends.append(weights(one))
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, rtol=0, atol=1e-6, msg=name)


@attrs.frozen
class Aged(GRPO):
    """Reports the lag that it sees."""

    def loss(self, batch):
        return attrs.evolve(GRPO.loss(self, batch), metrics={"lag": (batch.lag.sum(), batch.mask.sum())})


def test_a_loss_sees_how_many_versions_its_tokens_lag(learner, sampler):
    assert learner(loss=Aged()).step(sampler.groups(version=2), step=1, version=5)["loss/lag"] == 3.0
