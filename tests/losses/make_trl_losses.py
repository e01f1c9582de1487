"""Generator of `trl_losses.json`: values and gradients of TRL 1.16.0's own loss code on synthetic tensors.

    python3 -m venv trl && trl/bin/pip install -c constraints.txt torch==2.13.0 trl==1.16.0
    trl/bin/python tests/losses/make_trl_losses.py

`GRPOTrainer._compute_loss` runs unchanged on an object that provides log-probs in place of a model. The weights of the
importance-sampling correction are computed in the middle of a longer method; only those lines are run.
Everything is float64.
"""

import inspect
import json
import math
import textwrap
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch
import trl
from trl.trainer import grpo_trainer

TARGET = Path(__file__).with_name("trl_losses.json")
LENGTHS = (6, 2, 5, 7)
WIDTH, HORIZON = max(LENGTHS), 16
BASE = {
    "loss_type": "grpo",
    "level": "token",
    "epsilon_low": 0.2,
    "epsilon_high": 0.2,
    "delta": None,
    "beta": 0.0,
    "use_bias_correction_kl": False,
    "entropy_coef": 0.0,
    "is_mode": None,
    "is_clip": (None, None),
}
CASES = {
    "grpo": {},
    "grpo_kl": {"beta": 0.3},
    "grpo_kl_weighted": {"beta": 0.3, "use_bias_correction_kl": True},
    "bnpo": {"loss_type": "bnpo"},
    "bnpo_entropy": {"loss_type": "bnpo", "entropy_coef": 0.05},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "dapo_two_sided": {"loss_type": "dapo", "epsilon_high": 0.28, "delta": 1.5},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.2},
    "gspo": {"level": "sequence", "epsilon_low": 0.05, "epsilon_high": 0.1},
    "sapo": {"loss_type": "sapo"},
    "dapo_token_truncate": {"loss_type": "dapo", "is_mode": "token_truncate", "is_clip": (None, 1.2)},
    "dapo_token_mask": {"loss_type": "dapo", "is_mode": "token_mask", "is_clip": (0.7, 1.3)},
    "grpo_sequence_truncate": {"is_mode": "sequence_truncate", "is_clip": (None, 1.1)},
    "grpo_sequence_mask": {"is_mode": "sequence_mask", "is_clip": (0.5, 1.5)},
    "gspo_sequence_truncate_kl": {
        "level": "sequence",
        "epsilon_low": 0.05,
        "epsilon_high": 0.1,
        "beta": 0.3,
        "is_mode": "sequence_truncate",
        "is_clip": (None, 1.2),
    },
}


def inputs():
    """Log-probs of four completions of unequal length, under four policies, and their advantages."""
    random = torch.Generator().manual_seed(16)

    def normal(spread):
        return torch.randn(len(LENGTHS), WIDTH, generator=random, dtype=torch.float64) * spread

    logprobs = -normal(1.0).abs() - 0.01
    return {
        "logprobs": logprobs,
        "old": logprobs - normal(0.3),
        "sampling": logprobs - normal(0.4),
        "reference": logprobs - normal(0.3),
        "entropy": normal(1.0).abs(),
        "advantages": torch.tensor([0.8, -1.1, 0.5, -0.4], dtype=torch.float64),
        "mask": torch.stack([(torch.arange(WIDTH) < length).double() for length in LENGTHS]),
    }


def importance_sampling_ratio(case, data):
    """TRL's lines between the old log-probs and its ratio."""
    source = inspect.getsource(grpo_trainer.GRPOTrainer._generate_and_score_completions)
    start = source.index("                mask = completion_mask if tool_mask is None")
    end = source.index("            # Compute the per-token log probabilities for the reference model")
    low, high = case["is_clip"]
    scope = {
        "torch": torch,
        "math": math,
        "completion_mask": data["mask"],
        "tool_mask": None,
        "old_per_token_logps": data["old"],
        "sampling_per_token_logps": data["sampling"],
        "self": SimpleNamespace(
            vllm_importance_sampling_mode=case["is_mode"],
            vllm_importance_sampling_clip_min=low,
            vllm_importance_sampling_clip_max=high,
        ),
    }
    exec(textwrap.dedent(source[start:end]), scope)
    return scope["vllm_importance_sampling_ratio"]


def trainer(case, logprobs, data):
    """Everything that `_compute_loss` asks of its trainer."""
    identity = SimpleNamespace(
        gather=lambda value: value, reduce=lambda value, reduction: value, num_processes=1, sync_gradients=True
    )
    return SimpleNamespace(
        accelerator=identity,
        args=SimpleNamespace(
            delta=case["delta"],
            use_bias_correction_kl=case["use_bias_correction_kl"],
            sapo_temperature_pos=1.0,
            sapo_temperature_neg=1.05,
            steps_per_generation=1,
        ),
        aux_loss_enabled=False,
        beta=case["beta"],
        current_gradient_accumulation_steps=1,
        entropy_coef=case["entropy_coef"],
        _entropy_bonus_enabled=case["entropy_coef"] != 0.0,
        epsilon_low=case["epsilon_low"],
        epsilon_high=case["epsilon_high"],
        importance_sampling_level=case["level"],
        loss_type=case["loss_type"],
        max_completion_length=HORIZON,
        model=SimpleNamespace(training=True),
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_adaptive_entropy=False,
        use_vllm=case["is_mode"] is not None,
        vllm_importance_sampling_correction=case["is_mode"] is not None,
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, data["entropy"], None),
        _metrics={"train": defaultdict(list)},
    )


def compute(case, data):
    """Loss, and its gradient with respect to log-probs and entropy."""
    data = {name: value.clone() for name, value in data.items()}
    logprobs, data["entropy"] = data["logprobs"].requires_grad_(), data["entropy"].requires_grad_()
    ids = torch.zeros(len(LENGTHS), WIDTH, dtype=torch.long)
    batch = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1] + 1,
        "completion_ids": ids,
        "completion_mask": data["mask"],
        "advantages": data["advantages"],
        "old_per_token_logps": data["old"],
        "ref_per_token_logps": data["reference"],
        "num_items_in_batch": data["mask"].sum(),
    }
    if case["is_mode"] is not None:
        batch["importance_sampling_ratio"] = importance_sampling_ratio(case, data)
    loss = grpo_trainer.GRPOTrainer._compute_loss(trainer(case, logprobs, data), None, batch)
    loss.backward()
    entropy = data["entropy"].grad
    return {
        "loss": loss.item(),
        "gradient": logprobs.grad.tolist(),
        "entropy_gradient": None if entropy is None else entropy.tolist(),
    }


def main():
    """Write the file."""
    data = inputs()
    cases = [{"name": name, **BASE, **changes} for name, changes in CASES.items()]
    written = {
        "made_with": {"trl": trl.__version__, "torch": torch.__version__},
        "horizon": HORIZON,
        "inputs": {name: value.tolist() for name, value in data.items()},
        "cases": [case | compute(case, data) for case in cases],
    }
    TARGET.write_text(json.dumps(written) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
