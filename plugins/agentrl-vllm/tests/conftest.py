"""Fixtures: a server on loopback with the routes of vLLM, which core's tests use, too."""

import importlib.util
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from agentrl_core.api.weights import DirectoryWeights
from agentrl_testing.policy import write_tokenizer

SERVERS = Path(__file__).parents[3] / "tests" / "engines" / "servers.py"


@pytest.fixture(scope="session")
def servers():
    spec = importlib.util.spec_from_file_location("servers", SERVERS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("policy")
    write_tokenizer(directory)
    return directory


@pytest.fixture(scope="session")
def decode(model_dir):
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


@pytest.fixture(scope="session")
def one_server(servers, decode, model_dir):
    server = servers.ModelServer(decode, str(model_dir))
    yield server
    server.close()


@pytest.fixture
def server(one_server):
    one_server.reset()
    return one_server


@pytest.fixture
def new_weights(servers, tmp_path):
    return DirectoryWeights(servers.write_weights(tmp_path / "new", 1))
