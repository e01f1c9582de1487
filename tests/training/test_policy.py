import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl_core.batching.packing import pack
from agentrl_core.batching.samples import Sample
from agentrl_core.losses import AggregationConfig
from agentrl_core.training.policy import Policy

SMALL = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
ARCHITECTURES = {
    "qwen3": ({"head_dim": 8}, True),
    "llama": ({"tie_word_embeddings": False}, True),
    "gemma2": ({"head_dim": 8, "final_logit_softcapping": 2.0, "query_pre_attn_scalar": 8}, False),  # caps logits
    "cohere": ({"logit_scale": 0.5}, False),  # scales logits
    "phi": ({}, False),  # adds a bias
}


def batch():
    samples = [
        Sample(
            ids=[(7 * place + row) % 40 for place in range(length)],
            positions=[2, length - 1],
            logprobs=[0.0, 0.0],
            temperatures=[0.8, 0.8 + row],
            advantages=[1.0, 1.0],
            versions=[0, 0],
            interactions=[row, row],
            sequences=[row, row],
            record=row,
            group=0,
        )
        for row, length in enumerate((5, 9))
    ]
    (micro_batch,) = pack(samples, max_tokens=100, config=AggregationConfig()).micro_batches
    return samples, micro_batch


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logprobs_are_those_of_the_models_own_logits(architecture):
    options, plain = ARCHITECTURES[architecture]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **(SMALL | options))).eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.2)
    policy = Policy(model)
    assert (policy._network.head is not None) == plain
    samples, micro_batch = batch()
    logprobs, entropy = policy.logprobs(micro_batch)
    expected_logprobs, expected_entropy = [], []
    for sample in samples:  # each row alone, without padding
        logits = model(torch.tensor([sample.ids])).logits[0]
        for position, temperature in zip(sample.positions, sample.temperatures, strict=True):
            distribution = torch.log_softmax(logits[position - 1] / temperature, -1)
            expected_logprobs.append(distribution[sample.ids[position]])
            expected_entropy.append(-(distribution.exp() * distribution).sum())
    torch.testing.assert_close(logprobs, torch.stack(expected_logprobs), rtol=0, atol=2e-5)
    torch.testing.assert_close(entropy, torch.stack(expected_entropy), rtol=0, atol=2e-5)
    assert logprobs.requires_grad
    assert not entropy.requires_grad
    assert policy.logprobs(micro_batch, entropy_gradient=True)[1].requires_grad
