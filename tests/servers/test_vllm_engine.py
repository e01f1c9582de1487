"""The engine `vllm` in front of a real vLLM on the CPU: it passes the conformance suite of engines."""

import functools

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl_testing.engines import EngineSuite
from agentrl_testing.policy import NUM_TOKENS
from agentrl_vllm.engine import VLLMEngine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def forward(toys):
    """Logprobs of an output by transformers; the version is the index of the policy."""
    models = [AutoModelForCausalLM.from_pretrained(folder).eval() for folder in toys]

    @functools.cache
    def logits(version, ids):
        with torch.no_grad():
            return models[version](torch.tensor([ids])).logits[0].double()

    def logprobs(version, prompt_ids, output_ids, temperature):
        rows = logits(version, (*prompt_ids, *output_ids))[len(prompt_ids) - 1 : -1] / temperature
        return rows.log_softmax(-1)[range(len(output_ids)), list(output_ids)].tolist()

    return logprobs


class TestVLLM(EngineSuite):
    @pytest.fixture
    def vocab_size(self):
        return NUM_TOKENS

    @pytest.fixture
    def reference_logprobs(self, forward):
        return forward

    @pytest.fixture
    def grammars(self):
        return "refused"

    @pytest.fixture
    def engine_factory(self, toy_server, toys):
        return lambda: VLLMEngine(url=toy_server, model_dir=toys[0])
