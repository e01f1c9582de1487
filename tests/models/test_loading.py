import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from agentrl_core.engines.models import load_model
from agentrl_core.errors import ConfigError, EngineError
from agentrl_core.testing.policy import toy_policy
from agentrl_core.training.policy import Policy

LOADERS = {
    "policy": (Policy.load, ConfigError),
    "engine": (lambda path: load_model(path, torch.float32), EngineError),
}


@pytest.fixture(params=LOADERS)
def loader(request):
    """A way to load a model, and the error it raises."""
    return LOADERS[request.param]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A policy that shares its input and output embedding."""
    return toy_policy(tmp_path_factory.mktemp("models") / "toy", seed=1)


@pytest.fixture
def directory(whole, tmp_path):
    """Its copy, to be broken."""
    return shutil.copytree(whole, tmp_path / "model")


def change_config(directory, **changes):
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config.pop("layer_types", None)
    path.write_text(json.dumps(config | changes))


def test_shared_embeddings_are_not_missing(loader, directory):
    assert "lm_head.weight" not in load_file(directory / "model.safetensors")
    loader[0](directory)


def test_weights_that_are_not_there_are_named(loader, directory):
    load, error = loader
    change_config(directory, num_hidden_layers=3)
    with pytest.raises(
        error, match=r"do not fill the model .*model\.layers\.2\.input_layernorm\.weight.* more missing"
    ):
        load(directory)


def test_weights_of_another_shape_are_named(loader, directory):
    load, error = loader
    path = directory / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()
    size = len(tensors["model.norm.weight"])
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(error, match=rf"model\.norm\.weight is \({size},\) there"):
        load(directory)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_broken_file_is_named(loader, directory, name):
    load, error = loader
    path = directory / name
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(error, match=rf"{name}: the model cannot be loaded(?!.*remove that folder)"):
        load(directory)


def test_a_broken_checkpoint_may_be_removed(loader, directory):
    load, error = loader
    checkpoint = directory.rename(directory.with_name("step-7"))
    (checkpoint / "model.safetensors").write_bytes(b"")
    with pytest.raises(error, match=r"step-7 is this run's own checkpoint, remove that folder"):
        load(checkpoint)
