"""AgentRL's own loss values and gradients, reproduced under the flags that they were computed with.

`agentcpm_losses.json` holds the output of AgentCPM AgentRL's `grpo_loss` (float64, one process). Flags map as:
`epsilon` -> clip, `epsilon_higher` -> clip_higher, `token_level_loss` or `skip_length_normalization = false` ->
aggregation `agentcpm_rows` (one process: both are the mean over rows of the kept tokens' mean),
`skip_length_normalization` -> `seq_mean_token_sum`.
"""

import json
from pathlib import Path

import pytest
import torch

from agentrl_core.api.losses import LossBatch
from agentrl_core.losses.aggregate import AggregationConfig, Denominators, aggregate
from agentrl_core.losses.grpo import GRPO
from agentrl_core.losses.logprob import logits_logprobs
from agentrl_core.losses.minirl import MiniRL

GOLDEN = json.loads((Path(__file__).parent / "agentcpm_losses.json").read_text(encoding="utf-8"))


def tensor(name, dtype=torch.float64):
    return torch.tensor(GOLDEN["inputs"][name], dtype=dtype)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_value_and_gradient_are_agentrls(case):
    flags = case["cfg"]
    options = {
        "clip": flags["epsilon"],
        "clip_higher": flags["epsilon_higher"],
        "importance_weight_cap_ratio": flags["importance_weight_cap_ratio"],
        "strict_in_bound": flags["strict_in_bound"],
        "out_of_date_decay": flags["out_of_date_decay"],
    }
    calculator = {"GRPO": GRPO, "MINIRL": MiniRL}[flags["loss_calculater"]](**options)
    rowwise = flags["token_level_loss"] or not flags["skip_length_normalization"]
    config = AggregationConfig(aggregation="agentcpm_rows" if rowwise else "seq_mean_token_sum")

    logits = tensor("logits").requires_grad_()
    rows, length, vocabulary = logits.shape
    logprobs, _ = logits_logprobs(logits.reshape(-1, vocabulary), tensor("target_ids", torch.long).reshape(-1))
    behaviour = logprobs.detach() if case["name"] == "grpo_no_rollout_logprobs" else tensor("old_logprobs").reshape(-1)
    sequence = torch.arange(rows).repeat_interleave(length)
    mask = tensor("assistant_mask").reshape(-1)
    batch = LossBatch(
        logprobs=logprobs,
        behaviour_logprobs=behaviour,
        advantages=tensor("advantage_mask").reshape(-1),
        mask=mask,
        sequence=sequence,
        num_sequences=rows,
        record=sequence,
        group=torch.zeros_like(sequence),
        lag=case["current_step"] - tensor("create_step_mask", torch.long).reshape(-1),
    )
    loss = aggregate(config, batch, calculator.loss(batch), Denominators.count(mask, sequence, rows))
    loss.backward()

    assert loss.item() == pytest.approx(case["loss"], abs=1e-9)
    assert logits.grad.norm().item() == pytest.approx(case["grad_l2"], abs=1e-9)
    assert logits.grad.abs().sum().item() == pytest.approx(case["grad_sum_abs"], abs=1e-9)
    of_targets = logits.grad.gather(2, tensor("target_ids", torch.long)[..., None]).squeeze(2)
    # The file keeps eight decimals of these.
    torch.testing.assert_close(of_targets, torch.tensor(case["grad_target"], dtype=torch.float64), rtol=0, atol=5.1e-9)
