"""The learner on a GPU: each case equals the same one on the CPU. Skipped where torch finds no CUDA device."""

import gc

import pytest
import torch
from tests.losses.test_conformance import LOSSES

from agentrl_core.losses import corrected
from agentrl_core.losses.kl import KL
from agentrl_core.losses.ppo import PPO
from agentrl_core.run.trainer import Trainer
from agentrl_core.training.policy import Policy

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")

CUDA = torch.device("cuda", 0)
TRAINER = {"updates": 2, "max_tokens_per_microbatch": 60, "max_logprob_gap": 9.0}


@pytest.fixture(autouse=True)
def full_precision(monkeypatch):
    """Products in fp32 instead of tf32, so that a small difference means something."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


def metrics(learner, groups, device, **settings):
    one = learner(device=device, **settings)
    return one, one.step(groups, step=1, version=0)


def assert_near(found, expected, tolerance):
    for name in ("loss/value", "loss/grad_norm", "loss/entropy"):
        assert float(found[name]) == pytest.approx(float(expected[name]), rel=tolerance, abs=tolerance), name


@pytest.mark.parametrize("attention", ["flex", "dfs", "dense", "rows"])
def test_each_attention_is_that_of_the_cpu(learner, sampler, attention):
    groups = sampler.groups(count=3)
    loss = corrected(PPO(), [KL(beta=0.1)])
    placed, found = metrics(learner, groups, CUDA, loss=loss, trainer=TRAINER | {"attention": attention})
    _, expected = metrics(learner, groups, "cpu", loss=loss, trainer=TRAINER | {"attention": "dense"})
    assert_near(found, expected, 1e-2 if attention == "flex" else 1e-3)  # the products of flex are tf32
    assert placed._policy.attention == attention
    assert {weight.device for weight in placed.weights().module.parameters()} == {CUDA}


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_is_that_of_the_cpu(learner, sampler, name):
    groups = sampler.groups()
    found, expected = (
        metrics(learner, groups, device, loss=LOSSES[name], trainer=TRAINER | {"attention": "dense"})[1]
        for device in (CUDA, "cpu")
    )
    assert_near(found, expected, 1e-3)


def test_auto_chooses_flex(model_dir):
    assert Policy.load(model_dir, device=CUDA).attention == "flex"


@pytest.mark.parametrize("attention", ["flex", "dfs", "dense", "rows"])
def test_bf16_masters_train_on_cuda(learner, sampler, attention, tmp_path):
    groups = sampler.groups(count=3)
    trainer = TRAINER | {"attention": attention}
    one, found = metrics(learner, groups, CUDA, dtype="bfloat16", trainer=trainer)
    _, expected = metrics(learner, groups, "cpu", dtype="bfloat16", trainer=trainer | {"attention": "dense"})
    assert_near(found, expected, 0.05)
    module = dict(one.weights().module.named_parameters())
    for name, master in one._policy.masters.copies.items():
        assert (master.device, master.dtype) == (CUDA, torch.float32)
        assert torch.equal(module[name], master.bfloat16())
    one.save(tmp_path / "step-1", step=1, version=1)
    again = learner(device=CUDA, dtype="bfloat16", trainer=trainer)
    again.restore(tmp_path / "step-1")
    copies = again._policy.masters.copies
    assert all(torch.equal(copies[name], master) for name, master in one._policy.masters.copies.items())


@pytest.mark.parametrize("part", ["optimizer", "all"])
def test_a_released_learner_leaves_the_gpu_and_learns_the_same(learner, sampler, weights, part):
    resting, awake = (
        learner(device=CUDA, dtype="bfloat16", trainer=TRAINER | {"attention": "dense", "offload": offload})
        for offload in (part, "none")
    )
    for step in (1, 2, 3):
        groups = sampler.groups(seed=step)
        for one in (resting, awake):
            one.step(groups, step=step, version=9)
        resting.release()
        idle = [*resting._idle_tensors()]
        assert {tensor.device.type for tensor in idle} == {"cpu"}
        assert all(tensor.is_pinned() for tensor in idle)
    resting.reclaim()
    expected, found = weights(awake), weights(resting)
    assert all(torch.allclose(expected[name].float(), found[name].float(), atol=1e-3) for name in expected)


def test_release_frees_memory(learner, sampler):
    one = learner(device=CUDA, trainer=TRAINER | {"attention": "dense", "offload": "all"})
    one.step(sampler.groups(), step=1, version=0)
    gc.collect()
    before = torch.cuda.memory_allocated()
    one.release()
    moved = sum(tensor.numel() * tensor.element_size() for tensor in one._idle_tensors())
    assert before - torch.cuda.memory_allocated() >= moved


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_quickstart_reaches_its_bar(tmp_path, dtype):
    overrides = ["trainer.device=cuda", f"model.dtype={dtype}", f"output_dir={tmp_path}", "trackers=[jsonl]"]
    summary = Trainer("cookbook/quickstart/config.yaml", overrides=overrides, name=dtype).train()
    assert summary.status == "finished"
    assert summary.steps < 40, "the reward did not reach trainer.stop_at_reward"
