import ast
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import agentrl_core
from agentrl_core.engines.engine_weights import load_model
from agentrl_core.errors import ConfigError, EngineError
from agentrl_core.training.policy import Policy
from agentrl_core.weights.manifest import write_manifest
from agentrl_testing.policy import toy_policy

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


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite_are_named(loader, directory, value):
    load, error = loader
    path = directory / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"][3] = value
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(error, match=r"NaN or infinite numbers \(model\.norm\.weight\)"):
        load(directory)


def test_weights_that_are_not_what_the_manifest_says_are_refused(loader, directory):
    load, error = loader
    write_manifest(directory, step=3, version=4)
    load(directory)
    path = directory / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(error, match=r"model\.safetensors is damaged: its content is not what was written"):
        load(directory)


def test_code_in_a_model_directory_is_never_run(loader, directory, tmp_path, monkeypatch):
    """Not even where someone answers yes to whatever is asked on the terminal."""
    load, error = loader
    marker = tmp_path / "it ran"
    (directory / "own.py").write_text(
        f"open({str(marker)!r}, 'w').close()\n"
        "from transformers import PretrainedConfig, PreTrainedModel\n"
        "class Config(PretrainedConfig):\n    model_type = 'own'\n"
        "class Model(PreTrainedModel):\n    config_class = Config\n"
    )
    change_config(
        directory, model_type="own", auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    )
    monkeypatch.setattr("builtins.input", lambda *_: "yes")
    with pytest.raises(
        error, match=r"config\.json: the model needs Python code of its own \(own\.Model\), which is not"
    ):
        load(directory)
    assert not marker.exists()


def test_a_model_that_transformers_knows_needs_no_code_of_its_own(loader, directory):
    change_config(directory, auto_map={"AutoModelForCausalLM": "own.Model"})
    loaded = loader[0](directory)
    assert type(getattr(loaded, "model", loaded)).__module__.startswith("transformers.models.")


def test_every_call_of_transformers_says_that_no_code_is_run():
    sources = {path: path.read_text(encoding="utf-8") for path in Path(agentrl_core.__file__).parent.rglob("*.py")}
    calls = [
        (path.name, {ast.unparse(item) for item in node.keywords})
        for path, source in sources.items()
        if "from_pretrained" in source
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "from_pretrained"
    ]
    assert len(calls) >= 2
    assert [call for call in calls if "trust_remote_code=False" not in call[1]] == []
