"""Training of bf16 weights with fp32 masters."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from agentrl_core.batching import advantages
from agentrl_core.batching.credit import TreeCredit
from agentrl_core.batching.packing import pack
from agentrl_core.batching.samples import training_samples
from agentrl_core.batching.signal import training_signal
from agentrl_core.errors import RunError, TrainingError
from agentrl_core.losses import AggregationConfig
from agentrl_core.losses.grpo import GRPO
from agentrl_core.training.master_weights import MasterWeights
from agentrl_core.training.metrics import Means
from agentrl_core.training.optimizer import Updater, adamw
from agentrl_core.training.policy import Policy


@pytest.fixture
def bf16(learner):
    """Make a learner of bf16 weights."""

    def make(**changes):
        trainer = {"max_logprob_gap": 9.0} | changes.pop("trainer", {})
        return learner(dtype="bfloat16", trainer=trainer, **changes)

    return make


def equal(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


def masters_of(learner):
    return learner._policy.masters


@pytest.mark.parametrize(("masters", "expected"), [(False, range(60, 110)), (True, range(4096, 4097))])
def test_steps_that_are_lost_in_bf16_move_every_master(masters, expected):
    """AdamW at lr 1e-6 on bf16 weights moves only the smallest of them: a step is below half of their last digit."""
    torch.manual_seed(0)
    module = nn.Linear(64, 64, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        module.weight.copy_(torch.randn(64, 64) * 0.02)
    of_module = MasterWeights(module)
    trained = of_module.parameters if masters else [module.weight]
    before = trained[0].detach().clone()
    optimizer = torch.optim.AdamW(trained, lr=1e-6, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    for _ in range(100):
        trained[0].grad = torch.randn_like(trained[0])
        optimizer.step()
    assert int((trained[0] != before).sum()) in expected


def test_gradients_are_summed_in_fp32_and_leave_no_narrow_one():
    """256 + 1 is not a number of bf16: a sum in bf16 would stay at 256."""
    module = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    masters = MasterWeights(module)
    for value in (256.0, 1.0, 1.0, 1.0):
        module(torch.tensor([[value]], dtype=torch.bfloat16)).sum().backward()
        assert module.weight.grad is None
    assert masters.parameters[0].grad.item() == 259.0
    assert masters.parameters[0].grad.dtype == torch.float32


def test_wide_and_frozen_weights_have_no_copy():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to(torch.bfloat16), nn.Linear(2, 2).to(torch.bfloat16))
    module[2].requires_grad_(False)
    masters = MasterWeights(module)
    assert set(masters.copies) == {"1.weight", "1.bias"}
    assert masters.parameters[0] is module[0].weight
    assert [tensor.dtype for tensor in masters.parameters] == [torch.float32] * 4


def test_a_step_rounds_the_masters_into_the_module(bf16, sampler):
    one = bf16()
    before = {name: value.clone() for name, value in masters_of(one).copies.items()}
    metrics = one.step(sampler.groups(), step=1, version=0)
    assert math.isfinite(metrics["loss/grad_norm"])
    module = dict(one.weights().module.named_parameters())
    for name, master in masters_of(one).copies.items():
        assert master.dtype == torch.float32
        assert not torch.equal(master, before[name])
        assert torch.equal(module[name], master.bfloat16())
        assert module[name].dtype == torch.bfloat16
        assert module[name].grad is None


def test_many_micro_batches_give_the_gradient_of_one(model_dir, sampler):
    """Each micro-batch's gradient is rounded once, and their sum is not: the error does not grow with their number."""
    groups = sampler.groups(count=4)
    signal = training_signal(groups, credit=TreeCredit(), advantage=advantages.GRPO(), filters=[])
    samples = training_samples(signal.groups, signal.advantages).samples
    norms, directions = [], []
    for most in (10**6, 20):
        policy = Policy.load(model_dir, dtype="bfloat16")
        update = pack(samples, max_tokens=most, config=AggregationConfig(), merge=policy.merges)
        taken = _GradientOnly(policy.masters)
        means = Means()
        Updater(policy, GRPO(), AggregationConfig(), max_grad_norm=1e9).update(taken, update, means=means)
        norms.append(means.means()["grad_norm"])
        directions.append(taken.gradient)
    assert norms[0] == pytest.approx(norms[1], rel=0.02)
    assert torch.cosine_similarity(*directions, dim=0) > 0.999


class _GradientOnly:
    """Optimizer that keeps the gradient and changes nothing."""

    def __init__(self, masters):
        self._masters = masters

    def step(self):
        self.gradient = torch.cat([one.grad.flatten() for one in self._masters.parameters])


def test_the_gradient_norm_is_that_of_fp32_weights_within_rounding(learner, bf16, sampler):
    groups = sampler.groups(count=4)
    wide, narrow = (
        made(trainer={"max_logprob_gap": 9.0}).step(groups, step=1, version=0)["loss/grad_norm"]
        for made in (learner, bf16)
    )
    assert narrow == pytest.approx(wide, rel=0.05)


def test_a_restored_run_goes_on_to_identical_masters(bf16, sampler, tmp_path):
    trainer = {"updates": 2, "warmup_steps": 3}
    whole = bf16(trainer=trainer)
    for step in range(1, 5):
        whole.step(sampler.groups(seed=step), step=step, version=9)
        if step == 2:
            whole.save(tmp_path / "step-2", step=2, version=2)
    for directory in ({}, {"directory": tmp_path / "step-2"}):
        resumed = bf16(trainer=trainer, **directory)
        assert resumed.restore(tmp_path / "step-2") == (2, 2)
        for step in (3, 4):
            resumed.step(sampler.groups(seed=step), step=step, version=9)
        assert equal(masters_of(whole).copies, masters_of(resumed).copies)
        assert equal(whole.weights().module.state_dict(), resumed.weights().module.state_dict())


def test_a_checkpoint_is_a_usual_bf16_model(bf16, sampler, tmp_path):
    one = bf16()
    one.step(sampler.groups(), step=1, version=0)
    one.save(tmp_path / "step-1", step=1, version=1)
    assert [path.name for path in (tmp_path / "step-1").glob("*.safetensors")] == ["model.safetensors"]
    saved = load_file(tmp_path / "step-1/model.safetensors")
    assert {value.dtype for value in saved.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "step-1/config.json").read_text())["dtype"] == "bfloat16"
    loaded = Policy.load(tmp_path / "step-1", dtype="bfloat16").model.state_dict()
    assert equal(loaded, one.weights().module.state_dict())


def test_a_run_may_go_on_in_another_type(learner, bf16, sampler, weights, tmp_path):
    groups = sampler.groups()
    wide, narrow = learner(), bf16()
    for one, name in ((wide, "wide"), (narrow, "narrow")):
        one.step(groups, step=1, version=0)
        one.save(tmp_path / name / "step-1", step=1, version=1)
    to_narrow, to_wide = bf16(), learner(trainer={"max_logprob_gap": 9.0})
    to_narrow.restore(tmp_path / "wide/step-1")
    to_wide.restore(tmp_path / "narrow/step-1")
    exact = masters_of(narrow).copies
    # The output head is tied to the embeddings: both names must have the master's value.
    assert all(torch.equal(weights(to_wide)[name], master) for name, master in exact.items())
    assert torch.equal(weights(to_wide)["lm_head.weight"], weights(to_wide)["model.embed_tokens.weight"])
    assert equal({name: weights(wide)[name] for name in exact}, dict(masters_of(to_narrow).copies))
    assert equal(
        {name: value.bfloat16() for name, value in weights(wide).items()}, to_narrow.weights().module.state_dict()
    )
    for one in (to_narrow, to_wide):
        assert math.isfinite(one.step(groups, step=2, version=1)["loss/grad_norm"])


def test_masters_of_other_weights_are_refused(bf16, tmp_path):
    one = bf16()
    one.save(tmp_path / "step-1", step=1, version=1)
    path = tmp_path / "step-1" / "master_weights.pt"
    before = {name: value.clone() for name, value in masters_of(one).copies.items()}
    (tmp_path / "step-1/manifest.json").unlink()
    state = tmp_path / "step-1/trainer_state.json"
    state.write_text(json.dumps({"step": 1, "version": 1}))
    for content, found in [
        ({"model.norm.weight": torch.zeros(3)}, r"model\.norm\.weight has the shape \(3,\), expected"),
        ({"other": torch.zeros(3)}, "the model has no weight other"),
    ]:
        torch.save(content, path)
        with pytest.raises(RunError, match=rf"cannot read .*master_weights\.pt: {found}"):
            one.restore(tmp_path / "step-1")
    assert equal(before, dict(masters_of(one).copies))


def test_a_checkpoint_without_its_masters_is_not_complete(bf16, tmp_path):
    one = bf16()
    one.save(tmp_path / "step-1", step=1, version=1)
    (tmp_path / "step-1/master_weights.pt").unlink()
    with pytest.raises(RunError, match=r"master_weights\.pt"):
        one.restore(tmp_path / "step-1")


def test_a_refused_update_leaves_masters_and_no_gradient(bf16, sampler):
    class Steep(GRPO):
        """Adds sqrt(0) everywhere: worth nothing, and infinitely steep."""

        def loss(self, batch):
            output = super().loss(batch)
            output.per_token.add_((batch.logprobs - batch.logprobs.detach()).abs().sqrt())
            return output

    one = bf16(loss=Steep())
    before = {name: value.clone() for name, value in masters_of(one).copies.items()}
    with pytest.raises(TrainingError, match="would not be finite"):
        one.step(sampler.groups(), step=1, version=0)
    assert equal(before, dict(masters_of(one).copies))
    assert all(tensor.grad is None for tensor in masters_of(one).parameters)


def test_a_warm_start_hands_its_masters_to_the_steps_after_it(model_dir):
    """A second optimizer works on the same masters: nothing of what the first collected is rounded away."""
    policy = Policy.load(model_dir, dtype="bfloat16")
    first = policy.masters
    adamw(policy.masters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    assert policy.masters is first
