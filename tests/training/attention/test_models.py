"""Every family of models by the way that is chosen for it: as if each sequence were run alone by the model itself."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl_core.batching.packing import pack
from agentrl_core.batching.samples import Sample
from agentrl_core.losses import AggregationConfig
from agentrl_core.training.policy import Policy

VOCABULARY = 48
WINDOW = 6
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SLIDING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 3,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_ssm": 32, "mamba_d_state": 8, "mamba_chunk_size": 4}
MODELS = {
    "llama": ("rect", {}),
    "qwen3": ("rect", {}),
    "qwen3_moe": ("rect", EXPERTS | {"decoder_sparse_step": 1}),
    "cohere": ("rect", {"logit_scale": 0.5}),
    "granite": ("rect", {"attention_multiplier": 0.6}),  # a scale that is not of the width
    "phi": ("rect", {"num_key_value_heads": 4}),
    "qwen2": ("dfs", SLIDING | {"use_sliding_window": True}),
    "gemma2": ("dfs", SLIDING | {"query_pre_attn_scalar": 8, "attn_implementation": "eager"}),  # caps scores
    "gemma3_text": ("dfs", SLIDING | {"query_pre_attn_scalar": 8}),
    "gpt_oss": ("dfs", SLIDING | {"num_local_experts": 4, "num_experts_per_tok": 2}),  # sinks
    "llama4_text": (
        "dfs",
        {
            "layer_types": ["chunked_attention", "full_attention"],
            "attention_chunk_size": WINDOW,
            "intermediate_size_mlp": 32,
            "num_local_experts": 2,
        },
    ),
    "qwen3_next": ("dfs", EXPERTS | DELTA | {"shared_expert_intermediate_size": 16}),
    "qwen3_5_text": ("dfs", DELTA),
    "falcon_h1": ("dfs", MAMBA | {"mamba_n_groups": 1}),
    "lfm2": ("dfs", {"layer_types": ["conv", "full_attention"]}),
    "mamba2": ("dfs", {"num_heads": 4, "head_dim": 8, "state_size": 8, "n_groups": 1, "chunk_size": 4}),
    "mamba": ("rows", {"state_size": 8}),  # its reference forward starts from nothing
}


def build(architecture, **options):
    """A model with random weights, large enough to matter."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **(SMALL | options))).eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model


def tree(*, seed=0, trunk=9):
    """Samples that branch at several depths; nodes of one token, inner and last; one ends in another."""
    draw = torch.Generator().manual_seed(seed)

    def tokens(count):
        return torch.randint(VOCABULARY, (count,), generator=draw).tolist()

    start = tokens(trunk)
    long = start + tokens(8)
    fork = [*long[: trunk + 3], (long[trunk + 3] + 1) % VOCABULARY]
    sequences = [
        long,
        start + tokens(6),
        [*fork, 3, 4, 5],
        [*fork, 6, 7],
        [*fork, 8, 9],
        long[: trunk + 3],
        start[:3] + tokens(5),
        tokens(4),
    ]
    return [sample(ids, row) for row, ids in enumerate(sequences)]


def sample(ids, row):
    """A sample whose every token is trained, at one of two temperatures."""
    count = len(ids) - 1
    return Sample(
        ids=ids,
        positions=[*range(1, len(ids))],
        logprobs=[0.0] * count,
        temperatures=[0.7 + 0.3 * (row % 2)] * count,
        advantages=[0.0] * count,
        versions=[0] * count,
        interactions=[row] * count,
        sequences=[row] * count,
        record=row,
        group=0,
    )


def alone(model, samples):
    """Log-probs and entropies of all loss tokens, one sequence after the other through the model's own forward."""
    logprobs, entropies = [], []
    for one in samples:
        logits = model(torch.tensor([one.ids[:-1]]), use_cache=False).logits[0] / one.temperatures[0]
        distribution = torch.log_softmax(logits.float(), -1)
        logprobs.append(distribution.gather(1, torch.tensor(one.ids[1:])[:, None])[:, 0])
        entropies.append(-(distribution.exp() * distribution).sum(-1))
    return torch.cat(logprobs), torch.cat(entropies)


def gradients(model, outputs):
    """Of a loss that weighs every loss token and its entropy differently; the sum over two such losses."""
    model.zero_grad()
    weights = torch.linspace(-1, 1, len(outputs[0]))
    (outputs[0] * weights + outputs[1] * weights.flip(0) * 0.5).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_as_alone(policy, samples):
    """Log-probs and gradients are those of the sequences alone."""
    (batch,) = pack(samples, max_tokens=10**6, config=AggregationConfig(), merge=policy.merges).micro_batches
    wanted = alone(policy.model, samples)
    right = gradients(policy.model, wanted)
    found = policy.logprobs(batch, entropy_gradient=True)
    for mine, own in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, own, rtol=0, atol=2e-5)
    mine = gradients(policy.model, found)
    largest = max(gradient.abs().max().item() for gradient in right.values())
    assert mine.keys() == right.keys()
    for name, gradient in right.items():
        assert (mine[name] - gradient).abs().max().item() < 1e-5 * largest + 1e-6, name


@pytest.mark.parametrize("architecture", MODELS)
def test_logprobs_and_gradients_are_those_of_each_sequence_alone(architecture):
    way, options = MODELS[architecture]
    policy = Policy(build(architecture, **options))
    assert policy.attention == way
    assert_as_alone(policy, tree())
