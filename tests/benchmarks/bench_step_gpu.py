"""Whole training steps on a GPU at the shape of Qwen3-0.6B: time, MFU, memory, and what `trainer.offload` costs.

A step: 8 groups of 16 calls with a common prompt, packed into micro-batches; forward, GRPO loss, backward, clipping and
AdamW. Cases: bf16 weights with fp32 masters, and fp32. MFU counts as in `bench_tree_gpu`. `offload` moves the
optimizer's state and the masters away and back. Random weights; the fastest repeat counts, without the first one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import torch
from tests.benchmarks.bench_tree_gpu import TINY, Scale, group, operations, qwen3, timed
from tests.benchmarks.report import Row, report

from agentrl_core.batching.packing import pack
from agentrl_core.losses.aggregate import AggregationConfig
from agentrl_core.losses.grpo import GRPO
from agentrl_core.training.metrics import Means
from agentrl_core.training.offload import Offload
from agentrl_core.training.optimizer import Updater, adamw
from agentrl_core.training.policy import Policy

if TYPE_CHECKING:
    from agentrl_core.batching.samples import Sample

GROUPS = {"cuda": 8, "cpu": 1}
RATIO = 4
"""Tokens of all calls over those of the merged ones."""
PEAKS = {torch.bfloat16: 989.0, torch.float32: 67.0}
"""Of the H200 in TFLOP/s: dense bf16, and fp32 without tensor cores."""
BYTES = {torch.bfloat16: 18, torch.float32: 16}
"""Per weight: the weight, its master, gradient and moments (`master_weights`)."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and write build/benchmarks/step_gpu.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a toy on the CPU, which only shows that all runs")
    options = parser.parse_args(arguments)
    if not (options.tiny or torch.cuda.is_available()):
        sys.exit("step_gpu: no CUDA device is visible. `--tiny` runs a toy on the CPU")
    scale = TINY if options.tiny else Scale(merged=8192)
    rows = [row for dtype in PEAKS for row in steps(attrs.evolve(scale, dtype=dtype))]
    report(
        "step_gpu_tiny" if options.tiny else "step_gpu",
        rows,
        notes=("state_gb: weights, masters, gradients and moments, against 18 bytes a weight (bf16) or 16 (fp32)",),
    )


def steps(scale: Scale) -> list[Row]:
    """Measure whole steps with weights of one type."""
    model = qwen3(scale)
    policy = Policy(model, attention=scale.attention)
    optimizer = adamw(policy.masters, lr=1e-6, betas=(0.9, 0.95), weight_decay=0.0)
    updater = Updater(policy, GRPO(), AggregationConfig(), max_grad_norm=1.0)
    groups = [renumbered(group(scale, RATIO), index) for index in range(GROUPS[scale.device])]
    samples = [sample for members in groups for sample in members]

    def step() -> int:
        update = pack(samples, max_tokens=scale.merged, config=AggregationConfig(), device=policy.device)
        updater.update(optimizer, update, means=Means())
        return update.tokens

    seconds, forwarded = timed(step, scale)
    case = str(scale.dtype).removeprefix("torch.")
    needed = sum(operations(model, members) for members in groups)
    rows = [
        Row(case=case, metric="seconds", ours=seconds),
        Row(case=case, metric="tokens_per_s", ours=forwarded / seconds),
        Row(case=case, metric="mfu", ours=needed / seconds / (PEAKS[scale.dtype] * 1e12)),
    ]
    if scale.device == "cuda":
        weights = sum(weight.numel() for weight in policy.masters.parameters)
        rows.append(Row(case=case, metric="peak_gb", ours=torch.cuda.max_memory_allocated() / 1e9))
        rows.append(
            Row(
                case=case,
                metric="state_gb",
                ours=torch.cuda.memory_allocated() / 1e9,
                peer=BYTES[scale.dtype] * weights / 1e9,
                peer_name="computed",
            )
        )
    return [*rows, *offloaded(policy, optimizer, scale, case)]


def offloaded(policy: Policy, optimizer: torch.optim.Optimizer, scale: Scale, case: str) -> list[Row]:
    """Measure one round trip of optimizer state and masters through main memory."""
    policy.masters.zero_grad()
    offload = Offload(scale.device)
    moved = [value for state in optimizer.state.values() for value in state.values() if value.ndim]
    moved += policy.masters.copies.values()

    def there_and_back() -> int:
        offload.release(moved)
        offload.reclaim()
        return len(moved)

    seconds, _ = timed(there_and_back, scale)
    return [Row(case=case, metric="offload_s", ours=seconds)]


def renumbered(samples: Sequence[Sample], number: int) -> list[Sample]:
    """Make the calls of one group those of group `number`, with a first token of its own."""
    first = number * len(samples)
    return [
        attrs.evolve(
            sample,
            ids=[number, *sample.ids[1:]],
            record=first + sample.record,
            group=number,
            interactions=[first + sample.record] * len(sample.positions),
            sequences=[first + sample.record] * len(sample.positions),
        )
        for sample in samples
    ]


if __name__ == "__main__":
    main()
