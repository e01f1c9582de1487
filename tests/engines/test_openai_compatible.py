"""The engine in front of a model server: it passes the suite on both protocols, and takes no wrong data."""

import pytest
from tokenizers import Tokenizer

from agentrl_core.engines.openai_compatible import OpenAICompatibleEngine
from agentrl_core.errors import EngineError
from agentrl_core.testing.engines import EngineSuite
from agentrl_core.testing.policy import write_tokenizer
from agentrl_core.weights.base import DirectoryWeights


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("policy")
    write_tokenizer(directory)
    return directory


@pytest.fixture(scope="module")
def decode(model_dir):
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)


@pytest.fixture(scope="module")
def one_server(servers, decode, model_dir):
    server = servers.ModelServer(decode, str(model_dir))
    yield server
    server.close()


@pytest.fixture
def server(one_server):
    one_server.reset()
    return one_server


class OnServer(EngineSuite):
    @pytest.fixture
    def vocab_size(self, servers):
        return servers.VOCAB

    @pytest.fixture
    def new_weights(self, servers, tmp_path):
        return DirectoryWeights(servers.write_weights(tmp_path / "new", 1))

    @pytest.fixture
    def reference_logprobs(self, servers):
        return servers.reference_logprobs  # the salt of version 0 is 0, that of version 1 is 1

    @pytest.fixture
    def engine_factory(self, server, model_dir):
        return lambda: OpenAICompatibleEngine(url=server.url, server=self.kind, model_dir=model_dir)


class TestSGLang(OnServer):
    kind = "sglang"


@pytest.mark.slow
class TestIncrementalSGLang(OnServer):
    """Its streams hold what is new, where the server is started so."""

    kind = "sglang"

    @pytest.fixture
    def server(self, server):
        server.incremental = True
        return server


NO_WEIGHTS = pytest.mark.xfail(reason="vLLM has no route to load weights", raises=EngineError)


class TestVLLM(OnServer):
    kind = "vllm"

    @NO_WEIGHTS
    def test_logprobs_are_those_of_a_full_forward(self, engine, prompts, new_weights, reference_logprobs):
        super().test_logprobs_are_those_of_a_full_forward(engine, prompts, new_weights, reference_logprobs)

    @NO_WEIGHTS
    def test_nothing_is_sampled_during_a_pause(self, engine, prompts, new_weights):
        super().test_nothing_is_sampled_during_a_pause(engine, prompts, new_weights)

    @NO_WEIGHTS
    def test_running_requests_go_on_with_new_weights(self, engine, prompts, new_weights, reference_logprobs):
        super().test_running_requests_go_on_with_new_weights(engine, prompts, new_weights, reference_logprobs)

    @NO_WEIGHTS
    def test_versions_never_go_back(self, engine, new_weights):
        super().test_versions_never_go_back(engine, new_weights)
