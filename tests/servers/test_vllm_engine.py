"""The engine `vllm` in front of a real vLLM on the CPU: it passes the conformance suite of engines."""

import pytest
from tests.servers.forward import forward_logprobs

from agentrl_testing.engines import EngineSuite
from agentrl_testing.policy import NUM_TOKENS
from agentrl_vllm.engine import VLLMEngine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def forward(toys):
    return forward_logprobs(toys)


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
    def masks(self):
        """The CPU build cannot return them."""
        return "refused"

    @pytest.fixture
    def engine_factory(self, toy_server, toys):
        return lambda: VLLMEngine(url=toy_server, model_dir=toys[0])
