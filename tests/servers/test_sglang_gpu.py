"""The engine `sglang` in front of a real SGLang on a GPU, which the tests launch.

`AGENTRL_SGLANG` names the interpreter of an environment with SGLang, such as `/envs/sglang/bin/python`. These tests
have not been run yet: SGLang needs CUDA.
"""

import os

import pytest
import torch
from tests.servers.forward import forward_logprobs

from agentrl_core.api.weights import DirectoryWeights
from agentrl_core.engines.remote.launching import Launch, LaunchedServers
from agentrl_sglang.engine import SGLangEngine
from agentrl_sglang.program import SGLangProgram
from agentrl_testing.engines import EngineSuite, ask, run
from agentrl_testing.policy import NUM_TOKENS, toy_policy

PYTHON = os.environ.get("AGENTRL_SGLANG")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use"),
]

SHAPE = {"hidden_size": 128, "num_heads": 2, "num_kv_heads": 1, "head_dim": 64}
"""Shape that the kernels of all attention backends know."""
ARGUMENTS = ("--attention-backend", "triton", "--enable-deterministic-inference", "--disable-cuda-graph")


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    """Model directories of two tiny policies with different weights."""
    folder = tmp_path_factory.mktemp("policies")
    return [toy_policy(folder / f"policy-{seed}", seed=seed, **SHAPE) for seed in (0, 1)]


@pytest.fixture(scope="module")
def forward(policies):
    return forward_logprobs(policies)


@pytest.fixture(scope="module")
def server(policies, tmp_path_factory):
    """Address of a server of the first tiny policy."""
    launched = LaunchedServers(
        SGLangProgram(),
        Launch(python=PYTHON, device="cuda", gpu_memory=0.3, args=ARGUMENTS),
        name="SGLang",
        model_dir=policies[0],
        dtype="float32",
        log_dir=tmp_path_factory.mktemp("logs"),
        on_end=pytest.fail,
    )
    launched.start()
    yield launched.urls[0]
    launched.close()


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
    def new_weights(self, policies):
        return DirectoryWeights(policies[1])

    @pytest.fixture
    def engine_factory(self, server, policies, tmp_path):
        return lambda: SGLangEngine(url=server, model_dir=policies[0], weights_dir=tmp_path)


def test_the_same_prompt_before_and_after_a_publication_shows_no_cached_keys(server, policies, forward, tmp_path):
    engine = SGLangEngine(url=server, model_dir=policies[0], weights_dir=tmp_path)
    engine.start()
    prompt = [index % 250 for index in range(320)]

    async def both():
        before = await ask(engine, prompt, max_tokens=8)
        again = await ask(engine, prompt, max_tokens=8, seed=1)
        await engine.load_weights(1, DirectoryWeights(policies[1]))
        return before, again, await ask(engine, prompt, max_tokens=8)

    before, again, after = run(both())
    engine.close()
    assert again.last.cached_tokens > 0
    assert after.last.cached_tokens == 0
    for version, result in ((0, before), (1, after)):
        expected = forward(version, tuple(prompt), result.ids, 1.0)
        assert result.logprobs == pytest.approx(expected, abs=1e-4)
