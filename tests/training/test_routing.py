"""Experts are replayed on tiny mixture-of-experts models; what the experts were given is seen by hooks of the test."""

import attrs
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl_core.errors import ConfigError, TrainingError
from agentrl_core.losses.grpo import GRPO
from agentrl_core.training.routing import RoutingReplay
from agentrl_testing.policy import toy_policy

EXPERTS = {"num_experts": 6, "num_local_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
ARCHITECTURES = ["qwen3_moe", "mixtral", "olmoe"]
IDS = torch.arange(24)[None]


@pytest.fixture(scope="module")
def moe_dir(tmp_path_factory):
    return toy_policy(tmp_path_factory.mktemp("moe") / "toy", architecture="qwen3_moe", seed=2, **EXPERTS)


@pytest.fixture
def moe(moe_dir):
    return AutoModelForCausalLM.from_pretrained(moe_dir).eval()


def watched(model):
    """What the experts of each layer are given, in the order of calls: (indices, weights)."""
    seen = []
    for module in model.modules():
        if type(module).__name__.endswith("Experts"):
            module.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[1:]))
    return seen


def perturb(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)


def logits(model, ids=IDS):
    return model(input_ids=ids, use_cache=False).logits


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_experts_stay_those_recorded_though_the_weights_change(tmp_path, architecture):
    directory = toy_policy(tmp_path / "moe", architecture=architecture, seed=1, **EXPERTS)
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    replay, seen = RoutingReplay(model), watched(model)
    with replay.recording() as routes:
        logits(model)
    before = [indices for indices, _ in seen]
    perturb(model)
    seen.clear()
    logits(model)
    assert all(not torch.equal(indices, old) for (indices, _), old in zip(seen, before, strict=True))
    seen.clear()
    with routes.replayed():
        logits(model)
    assert len(seen) == 2
    for (indices, _), old in zip(seen, before, strict=True):
        assert torch.equal(indices, old)


def test_a_gate_weighs_replayed_experts_by_its_present_logits(moe):
    replay, seen = RoutingReplay(moe), watched(moe)
    with replay.recording() as routes:
        logits(moe)
    perturb(moe)
    seen.clear()
    gate = moe.model.layers[0].mlp.gate
    inputs = []
    gate.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    with routes.replayed():
        logits(moe)
    (indices, weights), *_ = seen
    probabilities = torch.softmax(inputs[0].double() @ gate.weight.double().T, -1)
    chosen = probabilities.gather(1, indices)
    expected = chosen / chosen.sum(-1, keepdim=True) if gate.norm_topk_prob else chosen
    torch.testing.assert_close(weights.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_with_equal_weights_replay_changes_no_bit(tmp_path, architecture):
    directory = toy_policy(tmp_path / "moe", architecture=architecture, seed=1, **EXPERTS)
    model = AutoModelForCausalLM.from_pretrained(directory).eval()
    replay = RoutingReplay(model)
    plain = logits(model)
    with replay.recording() as routes:
        recorded = logits(model)
    with routes.replayed():
        replayed = logits(model)
    assert torch.equal(plain, recorded)
    assert torch.equal(plain, replayed)


def test_the_gate_gets_a_gradient_that_finite_differences_confirm(moe_dir):
    model = AutoModelForCausalLM.from_pretrained(moe_dir, dtype=torch.float64, experts_implementation="eager").eval()
    replay = RoutingReplay(model)
    with replay.recording() as routes:
        logits(model)
    perturb(model)
    gate = model.model.layers[0].mlp.gate.weight

    def value():
        with routes.replayed():
            return logits(model).tanh().sum()

    value().backward()
    for place in [(0, 3), (5, 17)]:
        with torch.no_grad():
            values = []
            for step in (1e-3, -2e-3):
                gate[place] += step
                values.append(value().item())
            gate[place] += 1e-3
        assert gate.grad[place].item() == pytest.approx((values[0] - values[1]) / 2e-3, rel=0.02)  # the gate is in fp32
        assert abs(gate.grad[place].item()) > 1e-4


def test_several_passes_are_replayed_in_their_order(moe):
    replay, seen = RoutingReplay(moe), watched(moe)
    parts = [IDS[:, :9], IDS[:, 9:]]
    with replay.recording() as routes:
        for part in parts:
            logits(moe, part)
    before = [indices for indices, _ in seen]
    perturb(moe)
    seen.clear()
    with routes.replayed():
        for part in parts:
            logits(moe, part)
    assert all(torch.equal(indices, old) for (indices, _), old in zip(seen, before, strict=True))


def test_a_pass_that_does_not_fit_the_record_is_refused_and_leaves_the_model_usable(moe):
    replay = RoutingReplay(moe)
    plain = logits(moe)
    with replay.recording() as routes:
        logits(moe)
    with routes.replayed(), pytest.raises(TrainingError, match=r"of \(7,\) tokens, but \(24,\) are recorded"):
        logits(moe, IDS[:, :7])
    with routes.replayed():
        logits(moe)
        with pytest.raises(TrainingError, match="none are recorded"):
            logits(moe)
    assert torch.equal(logits(moe), plain)


def test_a_dense_model_is_refused(learner):
    with pytest.raises(ConfigError, match=r"trainer.routing_replay: no module of Qwen3ForCausalLM chooses experts"):
        learner(trainer={"routing_replay": True})


@pytest.fixture
def groups(sampler, moe):
    return attrs.evolve(sampler, model=moe).groups(count=4, size=3)


@attrs.frozen
class Decoupled(GRPO):
    needs = frozenset({"proximal"})


@pytest.mark.parametrize("max_tokens", [60, 8192])
@pytest.mark.parametrize("loss", [GRPO(), Decoupled()], ids=["plain", "decoupled"])
def test_every_update_of_a_step_takes_the_experts_from_before_it(learner, groups, moe_dir, loss, max_tokens):
    trainer = {"updates": 2, "lr": 0.05, "max_tokens_per_microbatch": max_tokens}
    ends = {}
    for replayed in (False, True):
        one = learner(directory=moe_dir, loss=loss, trainer=trainer | {"routing_replay": replayed})
        untouched = learner(directory=moe_dir, loss=loss, trainer=trainer | {"lr": 0.0})
        seen, expected = watched(one.weights().module), watched(untouched.weights().module)
        one.step(groups, step=1, version=0)
        untouched.step(groups, step=1, version=0)
        last = [indices for indices, _ in expected][-2:]  # two layers of the last micro-batch
        ends[replayed] = all(torch.equal(one, two) for (one, _), two in zip(seen[-2:], last, strict=True))
    assert ends == {False: False, True: True}


def test_a_step_of_one_update_is_the_same_with_replay(learner, groups, moe_dir, weights):
    ends = []
    for replayed in (False, True):
        one = learner(directory=moe_dir, trainer={"routing_replay": replayed})
        one.step(groups, step=1, version=0)
        ends.append(weights(one))
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
