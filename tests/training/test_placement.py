"""Whole learner steps on a pretend accelerator: a tensor that any part makes in main memory is an error there.

`tests/pretend_device.py` says how. The results are compared with those of the same step on the CPU.
"""

import attrs
import pytest
import torch
from tests.losses.test_conformance import CORRECTIONS, LOSSES
from tests.pretend_device import DEVICE, pretend_device, working_on
from torch.nn.functional import scaled_dot_product_attention

from agentrl_core.batching import advantages
from agentrl_core.batching.credit import TreeCredit
from agentrl_core.batching.packing import pack
from agentrl_core.batching.samples import training_samples
from agentrl_core.batching.signal import training_signal
from agentrl_core.config.training_sections import WarmStartConfig
from agentrl_core.data.demonstrations import Demonstration
from agentrl_core.errors import AgentRLError
from agentrl_core.losses import AggregationConfig, corrected
from agentrl_core.losses.cross_entropy import CrossEntropy
from agentrl_core.losses.grpo import GRPO
from agentrl_core.losses.kl import KL
from agentrl_core.losses.ppo import PPO
from agentrl_core.training.attention import flex
from agentrl_core.training.attention.dense import visible
from agentrl_core.training.attention.flex import block_mask
from agentrl_core.training.metrics import Means, ratio_shares
from agentrl_core.training.optimizer import PreStep, Updater
from agentrl_core.training.policy import Policy
from agentrl_core.training.warm_start import warm_start

__all__ = ["pretend_device"]

ATTENTION = ("rect", "dfs", "dense", "rows", "flex")
AGGREGATIONS = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant", "agentcpm_rows")


@pytest.fixture
def device(pretend_device, monkeypatch):
    """The pretend device; where torch would compile a kernel for CUDA, its block mask is applied by a plain one."""

    def masked(query, key, value, *, block_mask, scale, enable_gqa):
        places = torch.arange(query.shape[2], device=query.device)
        mask = block_mask.mask_mod(None, None, places[:, None], places)
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=enable_gqa)

    monkeypatch.setattr(flex, "_compiled", lambda: masked)
    return pretend_device


@pytest.fixture(scope="module")
def groups(sampler):
    """Groups of three policy versions."""
    made = [group for version in range(3) for group in sampler.groups(1, 2, seed=version, version=version)]
    return [attrs.evolve(group, id=f"{group.id}v{number}") for number, group in enumerate(made)]


def on_cpu(tensor):
    return tensor.detach().cpu().clone()


def outcome(learner, groups, place, **settings):
    """Metrics of two steps, the weights after them, and the devices of all that the learner keeps."""
    with working_on(place):
        one = learner(device=place, **settings)
        metrics = [one.step(groups, step=step, version=2) for step in (1, 2)]
        states = [tensor for state in one._optimizer.state.values() for tensor in state.values()]
        weights = one.weights().module.state_dict()
        places = {tensor.device for tensor in (*weights.values(), *states)}
        return metrics, {name: on_cpu(value) for name, value in weights.items()}, places


@pytest.mark.parametrize(
    ("attention", "dtype"), [*((name, "float64") for name in ATTENTION), ("rect", "bfloat16"), ("flex", "bfloat16")]
)
def test_a_step_is_that_of_the_cpu(device, learner, groups, attention, dtype):
    """Several updates and micro-batches, with the proximal and the reference policy.

    In fp64, because Adam's first steps have the size of the learning rate, whatever rounding makes of a tiny gradient.
    """
    settings = {
        "loss": corrected(PPO(), [KL(beta=0.1)]),
        "dtype": dtype,
        "trainer": {"updates": 2, "max_tokens_per_microbatch": 60, "max_logprob_gap": 9.0, "weight_decay": 0.1},
    }
    settings["trainer"]["attention"] = attention
    placed, weights, places = outcome(learner, groups, device, **settings)
    assert places == {DEVICE}
    settings["trainer"]["attention"] = "dense" if attention == "flex" else attention
    plain, expected, _ = outcome(learner, groups, "cpu", **settings)
    loose = 1e-6 if dtype == "float64" else 0.05
    for found, wanted in zip(placed, plain, strict=True):
        for name in ("loss/value", "loss/grad_norm", "loss/entropy", "loss/kl_reference"):
            assert found[name] == pytest.approx(wanted[name], rel=loose, abs=loose), name
    # In bf16 rounding decides the sign of some tiny gradients, and with it Adam's first steps of 1e-3.
    most = 1e-9 if dtype == "float64" else 1e-2
    for name, value in expected.items():
        assert (weights[name] - value).abs().max() < most, name


@pytest.fixture(scope="module")
def plain(model_dir):
    """The policy in main memory."""
    return Policy.load(model_dir)


@pytest.fixture(scope="module")
def placed(model_dir):
    """The policy on the pretend device."""
    with pytest.MonkeyPatch.context() as monkeypatch, working_on(DEVICE):
        monkeypatch.setattr("torch.__future__._swap_module_params_on_conversion", True)
        return Policy.load(model_dir, device=DEVICE, attention="rect")


class _GradientOnly:
    """Optimizer that keeps the gradient and changes nothing."""

    def __init__(self, masters):
        self._masters = masters

    def step(self):
        self.gradient = torch.cat([one.grad.flatten() for one in self._masters.parameters])


def gradient(policy, groups, loss, aggregation):
    """Loss, metrics and gradient of one update, on tokens of three policy versions."""
    signal = training_signal(groups, credit=TreeCredit(), advantage=advantages.GRPO(), filters=[])
    samples = training_samples(signal.groups, signal.advantages).samples
    update = pack(samples, max_tokens=10**6, config=aggregation, device=policy.device, merge=policy.merges)
    (batch,) = update.micro_batches
    taken, means = _GradientOnly(policy.masters), Means()
    before = PreStep(proximal=batch.behaviour_logprobs - 0.1, reference=batch.behaviour_logprobs + 0.1)
    updater = Updater(policy, loss, aggregation, max_grad_norm=1e9, observe=ratio_shares)
    value = updater.update(taken, update, [before], means=means, version=3)
    return value, means.means(), on_cpu(taken.gradient)


@pytest.mark.parametrize("name", [*LOSSES, "cross_entropy", *CORRECTIONS, *AGGREGATIONS])
def test_every_loss_stays_on_the_device_of_its_batch(device, plain, placed, groups, name):
    loss = LOSSES.get(name, CrossEntropy() if name == "cross_entropy" else GRPO())
    if name in CORRECTIONS:
        loss = corrected(loss, [CORRECTIONS[name]])
    options = {"horizon": 9} if name == "constant" else {}
    aggregation = AggregationConfig(aggregation=name if name in AGGREGATIONS else "token_mean", **options)
    expected = gradient(plain, groups, loss, aggregation)
    with working_on(device):
        found = gradient(placed, groups, loss, aggregation)
    assert found[0] == pytest.approx(expected[0], abs=1e-5)
    assert found[1] == pytest.approx(expected[1], abs=1e-4)
    torch.testing.assert_close(found[2], expected[2], rtol=1e-3, atol=1e-5)


def test_fine_tuning_stays_on_the_device(device, tmp_path, model_dir):
    """`agentrl sft` and the warm start share their trainer."""
    rows = [
        Demonstration(
            messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": text}],
            weights=[0, 1],
            where=text,
        )
        for text in ("yes", "no")
    ]
    losses = []
    for place in ("cpu", device):
        with working_on(place):
            made = warm_start(
                Policy.load(model_dir, device=place),
                rows,
                WarmStartConfig(data="rows.jsonl", steps=2, batch_size=2),
                model_dir=model_dir,
                max_tokens=100,
                max_grad_norm=1.0,
                seed=0,
            )
        losses.append(made)
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


CPU = torch.device("cpu")


class Forgetful(GRPO):
    """Makes a tensor on the default device."""

    def loss(self, batch):
        output = super().loss(batch)
        return attrs.evolve(output, keep=torch.ones(len(output.keep)))


def stay(tensor, _device):
    return tensor


def narrow_gradient(master, weight):
    master.grad, weight.grad = weight.grad.float().cpu(), None


FAULTS = {
    "packing": ("batching.packing.moved", stay, "rect"),
    "rows": ("training.attention.rows.moved", stay, "rows"),
    "mask": ("training.attention.dense.visible", lambda nodes, _: visible(nodes, CPU), "dense"),
    "block mask": ("training.attention.flex.block_mask", lambda nodes, _: block_mask(nodes, CPU), "flex"),
    "temperature": ("losses.logprob._divisor", lambda _, like: torch.full((len(like), 1), 2.0), "rect"),
    "logits": ("losses.logprob._places", lambda targets, *_: (targets.cpu(), targets.cpu() > 0), "rect"),
    "walk": ("training.attention.dfs._cut_off", lambda state: state.detach().cpu().requires_grad_(), "dfs"),
    "gradient": ("training.master_weights._move_gradient", narrow_gradient, "rect"),
    "loss": ("", None, "rect"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_part_that_forgets_the_device_is_found(device, learner, groups, monkeypatch, name):
    place, fault, attention = FAULTS[name]
    loss, trainer = GRPO(), {"attention": attention, "max_logprob_gap": 9.0}
    if name == "loss":
        loss = Forgetful()
    else:
        monkeypatch.setattr(f"agentrl_core.{place}", fault)
    with working_on(device), pytest.raises((RuntimeError, AgentRLError), match=r"main memory|same device"):
        learner(loss=loss, device=device, trainer=trainer, dtype="bfloat16").step(groups, step=1, version=2)
