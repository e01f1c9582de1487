"""Computations of `test_ranks.py`, run in one process and in processes that train one policy together."""

import attrs
import torch

from agentrl_core.api.losses import LossOutput
from agentrl_core.batching.packing import pack
from agentrl_core.errors import TrainingError
from agentrl_core.losses import AggregationConfig
from agentrl_core.losses.grpo import GRPO
from agentrl_core.training.diagnosis import Guard
from agentrl_core.training.metrics import Means, ratio_shares
from agentrl_core.training.optimizer import PreStep, Updater, adamw
from agentrl_core.training.policy import Policy
from agentrl_core.training.ranks import ALONE, Ranks, share_out


@attrs.frozen(kw_only=True)
class Case:
    aggregation: dict = attrs.field(factory=lambda: {"aggregation": "token_mean"})
    shared: bool = True
    """Else all samples are the last rank's."""
    dtype: str = "float64"
    fault: str = ""
    non_finite: str = "stop"
    unused: bool = False
    """Whether the model has a weight that nothing reaches."""


CASES = {
    **{
        name: Case(aggregation={"aggregation": name})
        for name in ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "agentcpm_rows")
    },
    "constant": Case(aggregation={"aggregation": "constant", "horizon": 7}),
    "calls are sequences": Case(aggregation={"aggregation": "seq_mean_token_mean", "unit": "interaction"}),
    "a rank without rows": Case(shared=False),
    "fp32": Case(dtype="float32"),
    "bf16 with masters": Case(dtype="bfloat16"),
    "bf16, a rank without rows": Case(dtype="bfloat16", shared=False),
    "an unused weight": Case(unused=True),
    "skip": Case(fault="advantage", non_finite="skip"),
    "skip all of a rank": Case(fault="advantages of a rank", non_finite="skip"),
    "skip by gradient": Case(fault="gradient", non_finite="skip"),
}
REFUSED = {
    "advantage": Case(fault="advantage"),
    "gradient": Case(fault="gradient"),
    "inspection": Case(fault="inspection"),
    "program": Case(fault="program"),
}
CULPRIT = 5
"""The record that is at fault."""


class SteepLoss(GRPO):
    """Adds sqrt(0) for the culprit: worth nothing, and infinitely steep."""

    def loss(self, batch):
        output = super().loss(batch)
        zero = (batch.logprobs - batch.logprobs.detach())[batch.record == CULPRIT]
        per_token = output.per_token.clone()
        per_token[batch.record == CULPRIT] += zero.abs().sqrt()
        return LossOutput(per_token=per_token, keep=output.keep, metrics=output.metrics)


def train(model_dir, samples, case, ranks=ALONE):
    """Two updates; returns losses, metrics and weights, or the errors."""
    policy = Policy.load(model_dir, dtype=case.dtype)
    if case.unused:
        policy.model.register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
    shares = share_out(samples, ranks.size) if case.shared else [[]] * (ranks.size - 1) + [samples]
    share = [faulty(sample, case, [item.record for item in shares[-1]]) for sample in shares[ranks.rank]]
    update = pack(share, max_tokens=40, config=AggregationConfig(**case.aggregation))
    if case.dtype != "float64":
        # AdamW divides by the gradient's own size, so that of a gradient near zero the rounding alone decides
        # In bf16 small steps: which ratios the second update clips depends on how the first was rounded.
        optimizer = torch.optim.SGD(policy.masters.parameters, lr=0.1 if case.dtype == "float32" else 1e-3)
        optimizer.register_step_post_hook(lambda *_: policy.masters.round_into_module())
    else:
        optimizer = adamw(policy.masters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    updater = Updater(
        policy,
        SteepLoss() if case.fault == "gradient" else GRPO(),
        AggregationConfig(**case.aggregation),
        max_grad_norm=1.0,
        observe=ratio_shares,
        ranks=ranks,
    )
    names = [f"r{index}" for index in range(1 + max(sample.record for sample in samples))]
    guard, means = Guard(case.non_finite, names, ranks=ranks), Means()

    def inspect(batch, logprobs):
        if CULPRIT in batch.record and case.fault in ("inspection", "program"):
            raise (TrainingError if case.fault == "inspection" else ZeroDivisionError)("found something")

    def apply(update, before):
        return updater.update(optimizer, update, before, means=means, inspect=inspect, names=names)

    try:
        values = [guard.attempt(update, [PreStep()] * len(update.micro_batches), apply) for _ in range(2)]
    except (TrainingError, ZeroDivisionError) as error:
        values = repr(error)
    weights = {name: weight.data for name, weight in policy.model.named_parameters()}
    masters = {f"master of {name}": master.data for name, master in policy.masters.copies.items()}
    return values, guard.left_out, means.means(), weights | masters


def faulty(sample, case, last_rank):
    bad = {"advantage": [CULPRIT], "advantages of a rank": last_rank}.get(case.fault, [])
    return attrs.evolve(sample, advantages=[float("nan")] * len(sample.advantages)) if sample.record in bad else sample


def train_together(model_dir, samples):
    """Return what each case comes to on this rank."""
    return {name: train(model_dir, samples, case, Ranks.of()) for name, case in (CASES | REFUSED).items()}
