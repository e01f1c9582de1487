"""What the learner gives a loss beside the policy: the log-probs of the proximal and of the reference policy."""

import attrs
import pytest
import torch

from agentrl_core.errors import ConfigError
from agentrl_core.losses import corrected
from agentrl_core.losses.grpo import GRPO
from agentrl_core.losses.importance import TruncatedIS
from agentrl_core.losses.kl import KL
from agentrl_core.losses.ppo import PPO
from agentrl_testing.policy import toy_policy


@attrs.frozen
class Spy:
    """PPO with a term for each policy, keeping every batch that it sees."""

    seen: list = attrs.field(factory=list)
    needs = frozenset({"proximal", "reference"})

    def loss(self, batch):
        self.seen.append(batch)
        return PPO().loss(batch)


@pytest.fixture
def forwards(monkeypatch):
    """Count the forward passes of every policy."""
    from agentrl_core.training.policy import Policy

    counted, right = [], Policy.logprobs
    monkeypatch.setattr(
        Policy, "logprobs", lambda self, batch, **options: counted.append(self) or right(self, batch, **options)
    )
    return counted


def test_the_reference_is_the_policy_before_the_first_step_and_stays_so(learner, sampler, weights):
    spy = Spy()
    one = learner(loss=spy, trainer={"lr": 1e-2, "max_tokens_per_microbatch": 60})
    before = weights(one)
    one.step(sampler.groups(), step=1, version=0)
    first = len(spy.seen)
    for batch in spy.seen:
        torch.testing.assert_close(batch.reference_logprobs, batch.logprobs.detach())
        assert not batch.reference_logprobs.requires_grad
    one.step(sampler.groups(), step=2, version=1)
    again = spy.seen[first:]
    assert first == len(again) > 1
    for then, now in zip(spy.seen, again, strict=False):
        assert torch.equal(then.reference_logprobs, now.reference_logprobs)
        assert not torch.equal(then.logprobs, now.logprobs)
    assert any(not torch.equal(before[name], value) for name, value in weights(one).items())


def test_the_reference_may_be_another_model(learner, sampler, tmp_path):
    other, spy = toy_policy(tmp_path / "other", seed=9), Spy()
    learner(loss=spy, reference=other).step(sampler.groups(), step=1, version=0)
    judge = Spy()
    learner(loss=judge, directory=other, trainer={"max_logprob_gap": 1e9}).step(sampler.groups(), step=1, version=0)
    for one, two in zip(spy.seen, judge.seen, strict=True):
        torch.testing.assert_close(one.reference_logprobs, two.logprobs.detach())


def test_a_reference_of_another_vocabulary_is_refused(learner, sampler, tmp_path):
    from transformers import AutoModelForCausalLM

    other = toy_policy(tmp_path / "other", seed=9)
    model = AutoModelForCausalLM.from_pretrained(other)
    model.resize_token_embeddings(model.config.vocab_size + 8)
    model.save_pretrained(other)
    with pytest.raises(ConfigError, match=r"loss\.reference: .* has a vocabulary of \d+ tokens, the policy one of \d+"):
        learner(loss=Spy(), reference=other).step(sampler.groups(), step=1, version=0)


def test_without_need_of_it_no_reference_is_read(learner, sampler, tmp_path):
    one = learner(reference=tmp_path / "nothing")
    assert not one.refers
    one.step(sampler.groups(), step=1, version=0)
    missing = learner(loss=corrected(GRPO(), [KL()]), reference=tmp_path / "nothing")
    assert missing.refers
    with pytest.raises(ConfigError, match="nothing"):
        missing.step(sampler.groups(), step=1, version=0)


def test_kl_pulls_the_policy_back_to_its_reference(learner, sampler):
    def divergence(beta):
        one = learner(loss=corrected(GRPO(), [KL(beta=beta)]), trainer={"lr": 3e-3, "max_logprob_gap": 1e9})
        return [one.step(sampler.groups(), step=step, version=0)["loss/kl_reference"] for step in range(1, 6)]

    free, held = divergence(0.0), divergence(3.0)
    assert free[0] == held[0] == pytest.approx(0, abs=1e-9)
    assert held[-1] < 0.5 * free[-1]


def test_the_first_update_of_a_step_costs_no_forward_for_its_proximal_policy(learner, sampler, forwards):
    plain, decoupled = learner(trainer={"updates": 1}), learner(loss=PPO(), trainer={"updates": 1})
    plain.step(sampler.groups(), step=1, version=0)
    alone = len(forwards)
    decoupled.step(sampler.groups(), step=1, version=0)
    assert len(forwards) == 2 * alone


def test_later_updates_see_the_policy_before_the_step(learner, sampler, forwards):
    spy = Spy()
    one = learner(loss=spy, trainer={"lr": 1e-2, "updates": 2})
    one.step(sampler.groups(), step=1, version=0)
    first, second = spy.seen
    assert torch.equal(first.proximal_logprobs, first.logprobs.detach())
    torch.testing.assert_close(second.proximal_logprobs, second.reference_logprobs)  # nothing else had moved yet
    assert (second.proximal_logprobs - second.logprobs.detach()).abs().max() > 1e-3
    assert len(forwards) == 2 + 2 + 1  # two updates, their references, the second one's proximal policy


def test_an_interpolated_proximal_policy_costs_no_forward_at_all(learner, sampler, forwards):
    spy = Spy()
    one = learner(loss=spy, proximal="loglinear", trainer={"lr": 1e-2, "updates": 2, "max_logprob_gap": 1e9})
    one.step(sampler.groups(version=2), step=1, version=5)
    assert len(forwards) == 4
    second = spy.seen[1]
    expected = second.behaviour_logprobs * 0.25 + second.logprobs.detach() * 0.75  # a lag of 3
    torch.testing.assert_close(second.proximal_logprobs, expected)


def test_a_correction_makes_grpo_clip_around_the_proximal_policy(learner, sampler):
    one = learner(loss=corrected(GRPO(), [TruncatedIS(cap=1.0)]), trainer={"updates": 2, "lr": 1e-2})
    metrics = one.step(sampler.groups(), step=1, version=0)
    assert metrics["loss/behaviour_weight_mean"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["loss/ratio_mean"] != 1.0
