"""Fixtures for engine tests: tiny policies of several architectures, and an independent full forward as reference."""

import importlib.util
from functools import cache
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from agentrl_core.engines.embedded import EmbeddedEngine
from agentrl_testing.policy import toy_policy

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
OPTIONS = {
    "qwen3": {},
    "qwen2": {"tied": False},
    "llama": {"tied": False, "rope_parameters": LLAMA3_ROPE, "num_kv_heads": 1},
}


@pytest.fixture(scope="session")
def policies(tmp_path_factory):
    """`policies(architecture, seed=0)`: the directory of a tiny policy, made once."""

    @cache
    def policy(architecture, seed=0):
        directory = tmp_path_factory.mktemp(f"{architecture}-{seed}")
        return toy_policy(directory, architecture=architecture, seed=seed, **OPTIONS[architecture])

    return policy


@pytest.fixture(scope="session")
def decode(policies):
    tokenizer = Tokenizer.from_file(str(policies("qwen3") / "tokenizer.json"))
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


@pytest.fixture(scope="session")
def vocab_size():
    return 263


@pytest.fixture(scope="session")
def load():
    """`load(directory)`: the model as transformers loads it; the same one for all tests, so copy before a change."""
    return cache(lambda directory: AutoModelForCausalLM.from_pretrained(directory).eval())


@pytest.fixture(scope="session")
def full_forward():
    """`full_forward(model, prompt_ids, output_ids, temperature)`: logprobs by one forward over everything."""

    @torch.no_grad()
    def logprobs(model, prompt_ids, output_ids, temperature=1.0):
        ids = torch.tensor([[*prompt_ids, *output_ids]])
        scaled = model(ids).logits[0, len(prompt_ids) - 1 : -1].double() / temperature
        return torch.log_softmax(scaled, -1)[range(len(output_ids)), list(output_ids)].tolist()

    return logprobs


@pytest.fixture(scope="session")
def servers():
    """The module beside this one with a model server for tests; test folders are no packages."""
    spec = importlib.util.spec_from_file_location("servers", Path(__file__).with_name("servers.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def start(policies):
    """`start(…options)`: a running engine on the Qwen3 policy, or on `model_dir`."""
    engines = []

    def make(**options):
        engines.append(EmbeddedEngine(**{"model_dir": policies("qwen3")} | options))
        engines[-1].start()
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
