"""The engine `sglang` passes the conformance suite of engines, in front of a fake with the released request classes."""

import pytest
from tests.servers.forward import forward_logprobs

from agentrl_sglang.engine import SGLangEngine
from agentrl_testing.engines import EngineSuite
from agentrl_testing.policy import NUM_TOKENS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def forward(toys):
    return forward_logprobs(toys)


class TestSGLang(EngineSuite):
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
    def engine_factory(self, fake, toys, tmp_path):
        return lambda: SGLangEngine(url=fake.url, model_dir=toys[0], weights_dir=tmp_path)
