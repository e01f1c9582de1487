"""Sequences by themselves, in padded rows."""

import torch
from tests.training.attention.test_dfs import counting, packed
from tests.training.attention.test_models import build, sample

from agentrl_core.training.policy import Policy


def test_little_of_a_forward_is_padding():
    policy = Policy(build("llama"), attention="rows")
    samples = [sample([3 + row] * length, row) for row, length in enumerate((5, 41, 6, 5, 40))]
    (batch,) = packed(samples, merge=False)
    with counting(policy.model) as counts, torch.no_grad():
        policy.logprobs(batch)
    assert counts == [3 * 5, 2 * 40]  # each row without its last token, those of about one length together
