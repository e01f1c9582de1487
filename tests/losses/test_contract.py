import attrs
import pytest
import torch

from agentrl_core.api.losses import LossBatch, LossOutput
from agentrl_core.errors import TrainingError
from agentrl_core.losses.contract import checked, checked_output, problem_of_needs
from agentrl_core.losses.corrected import Corrected
from agentrl_core.losses.grpo import GRPO
from agentrl_core.losses.lag_decay import LagDecay


class Mine:
    needs = frozenset()


@pytest.fixture
def batch():
    index = torch.zeros(3, dtype=torch.long)
    return LossBatch(
        logprobs=torch.tensor([-1.0, -2.0, -3.0], requires_grad=True),
        behaviour_logprobs=torch.tensor([-1.0, -2.0, -3.0]),
        advantages=torch.ones(3),
        mask=torch.ones(3),
        sequence=index,
        num_sequences=1,
        record=index,
        group=index,
        lag=index,
    )


@pytest.fixture
def output(batch):
    return LossOutput(per_token=-batch.logprobs, keep=batch.mask, metrics={"a": (torch.tensor(1.0), 2)})


def test_what_fits_is_returned_as_it_is(batch, output):
    assert checked(Mine(), batch, output) is output


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: found.per_token, r"Tensor; expected a LossOutput\(per_token=…, keep=…\)"),
        (lambda found: attrs.evolve(found, keep=[1.0] * 3), r"`keep` as list; expected \[3\]"),
        (
            lambda found: attrs.evolve(found, per_token=found.per_token.mean()),
            r"`per_token` of shape \[\]; expected \[3\]",
        ),
        (lambda found: attrs.evolve(found, per_token=found.per_token[:, None]), r"shape \[3, 1\]; expected \[3\]"),
        (lambda found: attrs.evolve(found, keep=torch.ones(1)), r"`keep` of shape \[1\]; expected \[3\]"),
        (lambda found: attrs.evolve(found, per_token=found.per_token.detach()), "without a gradient"),
        (lambda found: attrs.evolve(found, metrics={"a": torch.tensor(1.0)}), r"metric 'a' as a Tensor of shape \[\]"),
        (lambda found: attrs.evolve(found, metrics={"a": (torch.ones(3), 3)}), r"as \(a Tensor of shape \[3\], int\)"),
        (
            lambda found: attrs.evolve(found, metrics={"value": (1.0, 1)}),
            r"'value' but loss/value is a metric of the learner",
        ),
        (
            lambda found: attrs.evolve(found, metrics={"loss/a": (1.0, 1)}),
            r"reported as loss/loss/a; leave 'loss/' out",
        ),
    ],
)
def test_what_torch_would_broadcast_or_trip_over_is_told(batch, output, change, said):
    with pytest.raises(TrainingError, match=f"loss: Mine returned .*{said}"):
        checked(Mine(), batch, change(output))


def test_a_mask_of_truths_is_one_of_numbers(batch, output):
    kept = checked(Mine(), batch, attrs.evolve(output, keep=torch.tensor([True, False, True]))).keep
    assert (kept.dtype, kept.tolist()) == (torch.float32, [1.0, 0.0, 1.0])


def test_what_a_loss_raises_names_it_its_line_and_what_it_did_not_ask_for(batch):
    class Forgetful(GRPO):
        def loss(self, batch):
            return batch.logprobs - batch.proximal_logprobs

    said = r"loss: Forgetful raised TypeError: .* \(.*test_contract\.py:\d+\)\. .* are set \(nothing\); the others"
    with pytest.raises(TrainingError, match=said):
        checked_output(Forgetful(), batch)


def test_a_correction_is_blamed_for_its_own_shape(batch):
    class Flattens(LagDecay):
        def correct(self, batch, output):
            return attrs.evolve(output, per_token=output.per_token.sum())

    with pytest.raises(TrainingError, match="loss: Flattens returned `per_token`"):
        Corrected(calculator=GRPO(), corrections=(LagDecay(), Flattens())).loss(batch)


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        (["proximal"], r"its `needs` is \['proximal'\]; expected a frozenset"),
        ("proximal", "its `needs` is 'proximal'; expected a frozenset"),
        (frozenset({"values"}), "names values, which no learner computes; expected proximal, reference, entropy"),
    ],
)
def test_needs_of_another_form_are_told(needs, said):
    part = Mine()
    part.needs = needs
    assert said.replace("\\", "") in problem_of_needs(part)


def test_needs_are_needed():
    assert problem_of_needs(Mine()) is None
    assert "has no attribute `needs`" in problem_of_needs(object())
