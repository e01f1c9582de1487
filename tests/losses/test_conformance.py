"""The built-in losses and corrections keep the contract that anyone's must keep; and what breaks it is caught."""

import attrs
import pytest
import torch

from agentrl_core.errors import TrainingError
from agentrl_core.losses.cispo import CISPO
from agentrl_core.losses.cross_entropy import CrossEntropy
from agentrl_core.losses.dapo import DAPO
from agentrl_core.losses.dr_grpo import DrGRPO
from agentrl_core.losses.entropy_bonus import EntropyBonus
from agentrl_core.losses.grpo import GRPO
from agentrl_core.losses.gspo import GSPO
from agentrl_core.losses.importance import MaskedIS, TruncatedIS
from agentrl_core.losses.kl import KL
from agentrl_core.losses.lag_decay import LagDecay
from agentrl_core.losses.minirl import MiniRL, MiniRLPaper
from agentrl_core.losses.ppo import PPO
from agentrl_core.losses.reinforce import RLOO, Reinforce
from agentrl_core.losses.sapo import SAPO
from agentrl_testing.corrections import CorrectionSuite
from agentrl_testing.losses import LossSuite, check_contract, check_loss, check_sign

AGENTRL = {"clip_higher": 0.1, "importance_weight_cap_ratio": 4.0}
LOSSES = {
    "grpo": GRPO(),
    "grpo-cap": GRPO(**AGENTRL),
    "grpo-strict": GRPO(strict_in_bound=True),
    "grpo-decay": GRPO(**AGENTRL, out_of_date_decay=0.5),
    "dr_grpo": DrGRPO(),
    "dapo": DAPO(),
    "gspo": GSPO(),
    "gspo-wide": GSPO(clip=0.2, clip_higher=0.1),
    "cispo": CISPO(),
    "cispo-narrow": CISPO(cap=1.1),
    "sapo": SAPO(),
    "minirl": MiniRL(),
    "minirl-loose": MiniRL(**AGENTRL, strict_in_bound=False),
    "minirl_paper": MiniRLPaper(),
    "minirl_paper-narrow": MiniRLPaper(weight_cap=1.1),
    "ppo": PPO(),
    "ppo-dual": PPO(dual_clip=1.3, behaviour_weight_cap=1.1),
    "ppo-plain": PPO(behaviour_weight=False),
    "reinforce": Reinforce(),
    "reinforce-weighted": Reinforce(importance_weight=True),
    "rloo": RLOO(),
}
CORRECTIONS = {
    "truncated_is": TruncatedIS(cap=1.1),
    "truncated_is-sequence": TruncatedIS(level="sequence"),
    "truncated_is-geometric": TruncatedIS(level="geometric", cap=1.05),
    "masked_is": MaskedIS(low=0.8, high=1.2),
    "masked_is-sequence": MaskedIS(level="sequence"),
    "masked_is-geometric": MaskedIS(level="geometric", low=0.9, high=1.1, weighted=False),
    "lag_decay": LagDecay(rate=0.5),
    "kl-k1": KL(beta=0.5, estimator="k1"),
    "kl-k1-weighted": KL(beta=0.5, estimator="k1", importance_weight=True),
    "kl-k2": KL(beta=0.5, estimator="k2"),
    "kl-k3": KL(beta=0.5),
    "kl-k3-weighted": KL(beta=0.5, importance_weight=True),
    "entropy_bonus": EntropyBonus(coefficient=0.1),
}


def of(table):
    return {"params": list(table.values()), "ids": list(table)}


class TestLosses(LossSuite):
    @pytest.fixture(**of(LOSSES))
    def loss(self, request):
        return request.param


class TestCrossEntropy(LossSuite):
    @pytest.fixture
    def loss(self):
        return CrossEntropy()

    @pytest.mark.xfail(reason="supervised training has no advantages")
    def test_zero_advantage_gets_no_gradient(self, loss):
        super().test_zero_advantage_gets_no_gradient(loss)

    @pytest.mark.xfail(reason="supervised training has no advantages")
    def test_on_policy_it_is_reinforce(self, loss):
        super().test_on_policy_it_is_reinforce(loss)


class TestCorrections(CorrectionSuite):
    @pytest.fixture(**of(CORRECTIONS))
    def correction(self, request):
        return request.param


@attrs.frozen
class Mutant:
    """A loss with one thing wrong."""

    right: object
    change: object

    @property
    def needs(self):
        return self.right.needs

    @property
    def stops_gradient(self):
        return getattr(self.right, "stops_gradient", False)

    @property
    def whole_sequences(self):
        return getattr(self.right, "whole_sequences", False)

    def loss(self, batch):
        return self.change(self.right, batch)


def of_terms(change):
    """A mutant that changes the terms which a loss returns."""

    def changed(loss, batch):
        output = loss.loss(batch)
        return attrs.evolve(output, per_token=change(output.per_token, batch))

    return changed


def of_batch(change):
    """A mutant that sees another batch than it is given."""
    return lambda loss, batch: loss.loss(change(batch))


def without_detach(loss, batch):
    """As if `detach` had been forgotten wherever the loss has it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "detach", lambda tensor: tensor)
        return loss.loss(batch)


MUTANTS = {
    "sign": of_terms(lambda terms, _: -terms),
    "twice": of_terms(lambda terms, _: 2 * terms),
    "next token's term": of_terms(lambda terms, _: terms.roll(1)),
    "next token's logprob": of_batch(lambda batch: attrs.evolve(batch, logprobs=batch.logprobs.roll(-1))),
    "next token's behaviour": of_batch(
        lambda batch: attrs.evolve(
            batch,
            behaviour_logprobs=batch.behaviour_logprobs.roll(-1),
            proximal_logprobs=None if batch.proximal_logprobs is None else batch.proximal_logprobs.roll(-1),
        )
    ),
    "next token's advantage": of_batch(lambda batch: attrs.evolve(batch, advantages=batch.advantages.roll(-1))),
    "opposite advantage": of_batch(lambda batch: attrs.evolve(batch, advantages=-batch.advantages)),
    "mean over the micro-batch": of_terms(lambda terms, _: terms / len(terms)),
    "mean over all, masked ones too": of_terms(lambda terms, batch: terms * batch.mask.mean()),
    "mean over each sequence": of_terms(
        lambda terms, batch: terms / batch.expand(batch.seq_sum(torch.ones_like(terms)).clamp_min(1))
    ),
    "no gradient": of_terms(lambda terms, batch: terms.detach() + 0 * batch.logprobs),
    "detach forgotten": without_detach,
    "mask forgotten": lambda loss, batch: attrs.evolve(loss.loss(batch), keep=torch.ones_like(batch.mask)),
    "mask of the terms forgotten": of_batch(lambda batch: attrs.evolve(batch, mask=torch.ones_like(batch.mask))),
    "one number": of_terms(lambda terms, _: terms.sum()),
}


@pytest.mark.parametrize("name", [name for name in LOSSES if "-" not in name])
@pytest.mark.parametrize("change", MUTANTS.values(), ids=MUTANTS.keys())
def test_every_mutant_of_every_loss_is_caught(name, change):
    with pytest.raises((AssertionError, TrainingError)):
        check_loss(Mutant(LOSSES[name], change))


@pytest.mark.parametrize(
    ("mutant", "told"),
    [
        ("mean over the micro-batch", "masked tokens at the end of the batch change the gradient of the others"),
        ("mean over all, masked ones too", "masked tokens at the end of the batch change the gradient of the others"),
        ("twice", "aggregation token_mean: on-policy, the gradient is not that of -advantage"),
        ("mean of its part", "aggregation token_mean: micro-batches of whole sequences do not add up"),
    ],
)
def test_a_broken_rule_is_told_in_words(mutant, told):
    by_part = of_terms(lambda terms, batch: terms / batch.mask.sum())
    with pytest.raises(AssertionError, match=told):
        check_loss(Mutant(LOSSES["grpo"], {**MUTANTS, "mean of its part": by_part}[mutant]))


@pytest.mark.parametrize("name", LOSSES)
def test_a_wrong_sign_is_found_without_options_of_the_author(name):
    check_sign(LOSSES[name])
    with pytest.raises(AssertionError, match=r"the sign is wrong: .* tokens of positive advantage less likely"):
        check_sign(Mutant(LOSSES[name], of_terms(lambda terms, _: -terms)))


def test_a_loss_may_say_at_the_check_that_it_stops_the_gradient():
    check_loss(LOSSES["grpo"])
    with pytest.raises(AssertionError, match="says that it stops the gradient, but"):
        check_loss(LOSSES["grpo"], stops_gradient=True)


def test_a_loss_that_mixes_the_tokens_of_a_sequence_must_say_so():
    @attrs.frozen
    class Silent(GSPO):
        whole_sequences = False

    with pytest.raises(AssertionError, match="whole_sequences = True"):
        check_contract(Silent())


def test_a_loss_gets_no_more_than_it_asks_for():
    @attrs.frozen
    class Greedy(GRPO):
        def loss(self, batch):
            return attrs.evolve(GRPO.loss(self, batch), per_token=batch.reference_logprobs * batch.logprobs)

    with pytest.raises(TrainingError, match=r"Greedy raised TypeError: .*NoneType"):
        check_contract(Greedy())
