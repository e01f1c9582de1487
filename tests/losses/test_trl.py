"""TRL's own loss values and gradients, reproduced by ours; `make_trl_losses.py` writes what they are.

TRL's ratio is against the policy before the update, and a correction makes up for the sampler's: those are our
proximal and behaviour policy. Without its correction TRL knows no sampler, so that the policy before the update is
our behaviour policy. Loss types map to a calculator and its aggregation, which but for `bnpo` is the calculator's own.
"""

import json
from pathlib import Path

import pytest
import torch

from agentrl_core.api.losses import LossBatch
from agentrl_core.losses import LossSection, corrected
from agentrl_core.losses.aggregate import Denominators, aggregate
from agentrl_core.losses.cispo import CISPO
from agentrl_core.losses.dapo import DAPO
from agentrl_core.losses.dr_grpo import DrGRPO
from agentrl_core.losses.entropy_bonus import EntropyBonus
from agentrl_core.losses.grpo import GRPO
from agentrl_core.losses.gspo import GSPO
from agentrl_core.losses.importance import MaskedIS, TruncatedIS
from agentrl_core.losses.kl import KL
from agentrl_core.losses.ppo import PPO
from agentrl_core.losses.sapo import SAPO

TRL = json.loads((Path(__file__).parent / "trl_losses.json").read_text(encoding="utf-8"))
EXACT = {"rtol": 1e-11, "atol": 1e-13}


def tensor(name):
    return torch.tensor(TRL["inputs"][name], dtype=torch.float64)


def calculator_of(case):
    """The calculator, and the options of the loss section beside its own."""
    clip = {"clip": case["epsilon_low"], "clip_higher": case["epsilon_high"] - case["epsilon_low"]}
    if case["level"] == "sequence":
        return GSPO(**clip), {}
    if case["delta"] is not None:
        return PPO(**clip, dual_clip=case["delta"], behaviour_weight=False), {}
    return {
        "grpo": lambda: (GRPO(**clip), {"aggregation": "seq_mean_token_mean"}),
        "bnpo": lambda: (GRPO(**clip), {}),
        "dapo": lambda: (DAPO(**clip), {}),
        "dr_grpo": lambda: (DrGRPO(**clip), {"horizon": TRL["horizon"]}),
        "cispo": lambda: (CISPO(cap=case["epsilon_high"]), {}),
        "sapo": lambda: (SAPO(), {}),
    }[case["loss_type"]]()


def corrections_of(case):
    low, high = case["is_clip"]
    level, _, how = (case["is_mode"] or "").partition("_")
    if how == "truncate":
        yield TruncatedIS(level=level, cap=high)
    if how == "mask":
        yield MaskedIS(level=level, low=low, high=high)
    if case["beta"]:
        yield KL(beta=case["beta"], importance_weight=case["use_bias_correction_kl"])
    if case["entropy_coef"]:
        yield EntropyBonus(coefficient=case["entropy_coef"])


@pytest.mark.parametrize("case", TRL["cases"], ids=lambda case: case["name"])
def test_value_and_gradient_are_trls(case):
    calculator, options = calculator_of(case)
    config = LossSection.read(options, getattr(calculator, "aggregation_defaults", {})).aggregation
    loss = corrected(calculator, list(corrections_of(case)))

    mask = tensor("mask").reshape(-1)
    rows, width = tensor("mask").shape
    sequence = torch.arange(rows).repeat_interleave(width)
    logprobs, entropy = (tensor(name).reshape(-1).requires_grad_() for name in ("logprobs", "entropy"))
    before = tensor("old").reshape(-1)
    batch = LossBatch(
        logprobs=logprobs,
        behaviour_logprobs=tensor("sampling").reshape(-1) if case["is_mode"] else before,
        proximal_logprobs=before if "proximal" in loss.needs else None,
        reference_logprobs=tensor("reference").reshape(-1),
        entropy=entropy,
        advantages=tensor("advantages").repeat_interleave(width),
        mask=mask,
        sequence=sequence,
        num_sequences=rows,
        record=sequence,
        group=torch.zeros_like(sequence),
        lag=torch.zeros_like(sequence),
    )
    value = aggregate(config, batch, loss.loss(batch), Denominators.count(mask, sequence, rows))
    value.backward()

    assert value.item() == pytest.approx(case["loss"], rel=1e-11)
    expected = torch.tensor(case["gradient"], dtype=torch.float64)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(logprobs.grad.reshape(rows, width), expected, **EXACT)
    if case["entropy_coef"]:
        expected = torch.tensor(case["entropy_gradient"], dtype=torch.float64)
        torch.testing.assert_close(entropy.grad.reshape(rows, width), expected, **EXACT)


def test_the_cases_cut_some_ratios_and_weights():
    """Else the comparison would say nothing about clips, caps and bounds."""
    mask = tensor("mask") > 0
    ratio, weight = (tensor("logprobs") - tensor("old")).exp()[mask], (tensor("old") - tensor("sampling")).exp()[mask]
    assert ratio.min() < 0.8
    assert ratio.max() > 1.5
    assert weight.min() < 0.7
    assert weight.max() > 1.3
    products = ((tensor("old") - tensor("sampling")) * tensor("mask")).sum(1).exp()
    assert ((products > 1.5) | (products < 0.5)).any()
    assert ((products < 1.5) & (products > 0.5)).any()
