"""Every implementation of the embedded engine passes the suite: the own loop, and `generate` elsewhere."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl_core.api.weights import DirectoryWeights, ModuleWeights
from agentrl_core.engines.embedded import EmbeddedEngine
from agentrl_testing.engines import EngineSuite
from agentrl_testing.policy import write_tokenizer


class OfArchitecture(EngineSuite):
    """Fixtures by `architecture`."""

    @pytest.fixture
    def directories(self, architecture, policies):
        """The weights to start with and the new ones."""
        return policies(architecture), policies(architecture, seed=1)

    @pytest.fixture
    def reference_logprobs(self, directories, load, full_forward):
        models = [load(directory) for directory in directories]
        return lambda version, *arguments: full_forward(models[version], *arguments)

    @pytest.fixture
    def new_weights(self, directories):
        return DirectoryWeights(directories[1])

    @pytest.fixture
    def engine_factory(self, directories):
        return lambda: EmbeddedEngine(model_dir=directories[0], implementation="loop")


@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama"])
class TestLoop(OfArchitecture):
    pass


@pytest.mark.parametrize("architecture", ["qwen3"])
class TestLoopInSmallPieces(OfArchitecture):
    """The same with fewer rows than requests, prefill in pieces, and a prefix store that keeps forgetting."""

    @pytest.fixture
    def engine_factory(self, directories):
        return lambda: EmbeddedEngine(model_dir=directories[0], slots=8, prefill_tokens=33, prefix_tokens=160)

    @pytest.fixture
    def new_weights(self, directories, load):
        return ModuleWeights(load(directories[1]))


@pytest.mark.slow
class TestGenerate(OfArchitecture):
    """Another architecture is served through the model's own `generate`."""

    @pytest.fixture
    def directories(self, gpt_neox):
        return gpt_neox

    @pytest.fixture
    def engine_factory(self, directories):
        return lambda: EmbeddedEngine(model_dir=directories[0])


@pytest.fixture(scope="module")
def gpt_neox(tmp_path_factory):
    """Two small GPT-NeoX models: layer norm, parallel residual, partial rotary embedding, separate head."""
    config = AutoConfig.for_model(
        "gpt_neox",
        vocab_size=263,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=1024,
    )
    directories = [tmp_path_factory.mktemp(f"gpt_neox-{seed}") for seed in (0, 1)]
    for seed, directory in enumerate(directories):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
        model.save_pretrained(directory)
        write_tokenizer(directory)
    return directories
