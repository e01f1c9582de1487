from functools import partial

import pytest
import torch
from tests.training.attention.test_models import assert_as_alone, build, gradients, tree
from torch import nn

from agentrl_core.batching.packing import pack
from agentrl_core.errors import ConfigError
from agentrl_core.losses import AggregationConfig
from agentrl_core.training.gradient_checkpointing import recomputable_layers
from agentrl_core.training.policy import Policy


def kept(policy, batch):
    """Numbers that a forward keeps for the backward pass, the weights apart."""
    weights = {parameter.data_ptr() for parameter in policy.model.parameters()}
    found = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        outputs = policy.logprobs(batch, entropy_gradient=True)
    del outputs
    return sum(found.values())


@pytest.mark.parametrize("attention", ["rect", "dfs", "rows"])
def test_gradients_are_the_same(attention):
    assert_as_alone(Policy(build("qwen3"), attention=attention, gradient_checkpointing=True), tree())


def test_a_fraction_is_kept():
    model = build("qwen3", num_hidden_layers=4)
    (batch,) = pack(tree(trunk=100), max_tokens=1000, config=AggregationConfig()).micro_batches
    plain, saving = Policy(model), Policy(model, gradient_checkpointing=True)
    assert kept(saving, batch) < kept(plain, batch) / 3


def fail_in_training(layer, module, _inputs):
    assert not layer.training
    assert not module.training


def test_dropout_stays_off_and_layers_are_as_they_were():
    model = build("qwen3", attention_dropout=0.5)
    for layer in recomputable_layers(model):
        for module in layer.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_pre_hook(partial(fail_in_training, layer))
    policy = Policy(model, gradient_checkpointing=True)
    (batch,) = pack(tree(), max_tokens=1000, config=AggregationConfig()).micro_batches
    first, second = (gradients(model, policy.logprobs(batch)) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not any(module.training for module in model.modules())
    assert not any(vars(layer).keys() & {"gradient_checkpointing"} for layer in recomputable_layers(model))


def test_a_model_without_such_layers_is_refused(monkeypatch):
    monkeypatch.setattr("agentrl_core.training.policy.recomputable_layers", lambda model: ())
    with pytest.raises(ConfigError, match=r"trainer\.gradient_checkpointing: .*leave it out"):
        Policy(build("qwen3"), gradient_checkpointing=True)


def test_routes_are_not_replayed_into_a_second_forward(learner):
    with pytest.raises(ConfigError, match=r"trainer\.routing_replay: the backward pass runs the model again"):
        learner(trainer={"routing_replay": True, "gradient_checkpointing": True})
