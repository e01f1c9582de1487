"""Log-probabilities by transformers, as the reference of the tests against model servers."""

import functools


def forward_logprobs(folders):
    """Return a function for the conformance suite; the version is the index of the model directory."""
    import torch
    from transformers import AutoModelForCausalLM

    models = [AutoModelForCausalLM.from_pretrained(folder).eval() for folder in folders]

    @functools.cache
    def logits(version, ids):
        with torch.no_grad():
            return models[version](torch.tensor([ids])).logits[0].double()

    def logprobs(version, prompt_ids, output_ids, temperature):
        rows = logits(version, (*prompt_ids, *output_ids))[len(prompt_ids) - 1 : -1] / temperature
        return rows.log_softmax(-1)[range(len(output_ids)), list(output_ids)].tolist()

    return logprobs
