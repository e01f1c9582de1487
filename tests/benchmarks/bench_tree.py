"""CPU seconds and memory of training steps with merged prefixes, compared with two ways without merging.

A step packs samples, then runs forward, GRPO's loss and backward. `packed` is the same without merging. `padded` is one
batch padded on the right, with its rows in parts of at most 16384 tokens. All run in turns in one process with one
thread. The smallest CPU seconds of the repeats count, the first step is dropped, and every trainer must find the same
loss and gradients. Qwen3 with random weights, 2 layers of 256, 8192 token ids, fp32.

`speedup_…` rows are tokens per CPU second, with the whole prompt of every call; their ratio is the speed-up.
`token_ratio` is the number of those tokens per forwarded token, `cpu_s_per_token` is per forwarded token, and
`peak_mb` is the rise of the process's memory during a step.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs
import torch
from tests.benchmarks.memory import forget_peak, give_back, peak_mb, used_mb
from tests.benchmarks.report import Row, report
from tests.benchmarks.tree import growth
from tests.benchmarks.tree.cases import CASES, calls_of
from tests.benchmarks.tree.trainers import Train, qwen3, trainers
from torch import Tensor, nn

if TYPE_CHECKING:
    from agentrl_core.batching.samples import Sample

MODEL = "2 layers of 256"
ENOUGH_S = 15
"""CPU seconds of a case after which no further repeat begins."""


@attrs.frozen
class Bar:
    """What a row has to reach."""

    case: str
    metric: str
    peer_name: str
    least: float = -math.inf
    most: float = math.inf

    def judge(self, rows: Sequence[Row]) -> str | None:
        """Return one line; None where the row was not measured."""
        found = [
            row for row in rows if (row.case, row.metric, row.peer_name) == (self.case, self.metric, self.peer_name)
        ]
        if not found:
            return None
        value = found[0].ours if found[0].ratio is None else found[0].ratio
        wanted = f">= {self.least:g}" if math.isinf(self.most) else f"<= {self.most:g}"
        verdict = "met" if self.least <= value <= self.most else "MISSED"
        against = f" against {self.peer_name}" if self.peer_name else ""
        return f"{self.case} {self.metric}{against}: {value:.4g}, bar {wanted}: {verdict}"


BARS = (
    Bar("react_10", "speedup_vs_packed", "packed", least=3.5),
    Bar("react_10", "speedup_vs_padded", "padded", least=7),
    Bar("react_20", "speedup_vs_packed", "packed", least=8),
    Bar("react_20", "speedup_vs_padded", "padded", least=11),
    Bar("group_8", "speedup_vs_packed", "packed", least=2.5),
    Bar("discard_10", "speedup_vs_packed", "packed", least=2.3),
    Bar("nothing_shared", "speedup_vs_packed", "packed", least=round(1 / 1.1, 3)),
    Bar("grow_12k", "peak_mb", "dense", most=0.4),
    Bar("grow_32k", "peak_mb", "", most=1200),
    Bar("grow_32k", "cpu_s_per_token", "ours, grow_4k", most=5),
)


def main() -> None:
    """Measure, print the table and write build/benchmarks/tree.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3, help="fewer of what takes long")
    cases = [*CASES, *growth.TOKENS]
    parser.add_argument("--cases", nargs="+", default=cases, choices=cases)
    parser.add_argument("--cell", nargs=2, metavar=("CASE", "TRAINER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        case, trainer = arguments.cell
        print(json.dumps(growth.cell(case, trainer, arguments.repeats)))  # noqa: T201 - to the process that asked
        return
    torch.set_num_threads(1)
    model = qwen3(layers=2, hidden=256)
    contenders = trainers(model)
    rows: list[Row] = []
    for case in filter(CASES.__contains__, arguments.cases):
        print(f"{case} …", file=sys.stderr, flush=True)  # noqa: T201 - all of it takes some minutes
        rows += measure(case, model, contenders, arguments.repeats)
    rows += growth.measure([case for case in growth.TOKENS if case in arguments.cases], arguments.repeats)
    report("tree", rows, notes=[line for bar in BARS if (line := bar.judge(rows))])


@attrs.define(kw_only=True)
class Cost:
    """What one trainer took for a case."""

    loss: float
    gradients: list[Tensor]
    """Of all weights, in their order."""
    tokens: int
    """Forwarded."""
    peak_mb: float
    cpu_s: float = math.inf


def measure(case: str, model: nn.Module, contenders: dict[str, Train], repeats: int) -> Iterator[Row]:
    """Yield the rows of one case."""
    samples = calls_of(case)
    costs = {name: first_step(model, train, samples) for name, train in contenders.items()}
    for peer in ("packed", "padded"):
        check_agreement(case, costs["ours"], costs[peer], peer)
    spent = 0.0
    for _ in range(repeats):
        if spent > ENOUGH_S:
            break
        for name, train in contenders.items():
            seconds = cpu_seconds(model, train, samples)
            costs[name].cpu_s = min(costs[name].cpu_s, seconds)
            spent += seconds
    call_tokens = sum(len(sample.ids) for sample in samples)
    ours = costs.pop("ours")
    for name, cost in costs.items():
        speeds = call_tokens / ours.cpu_s, call_tokens / cost.cpu_s
        yield Row(case=case, model=MODEL, metric=f"speedup_vs_{name}", ours=speeds[0], peer=speeds[1], peer_name=name)
    yield Row(case=case, model=MODEL, metric="token_ratio", ours=call_tokens / ours.tokens)
    for name, cost in costs.items():
        yield Row(case=case, model=MODEL, metric="peak_mb", ours=ours.peak_mb, peer=cost.peak_mb, peer_name=name)
    yield Row(case=case, model=MODEL, metric="cpu_s_per_token", ours=ours.cpu_s / ours.tokens)


def first_step(model: nn.Module, train: Train, samples: list[Sample]) -> Cost:
    """Train once for what is found, and for the memory that it takes."""
    model.zero_grad(set_to_none=True)
    gc.collect()
    give_back()
    forget_peak()
    before = used_mb()
    loss, tokens = train(samples)
    peak = peak_mb() - before
    return Cost(loss=loss, gradients=[_gradient(weight) for weight in model.parameters()], tokens=tokens, peak_mb=peak)


def _gradient(weight: Tensor) -> Tensor:
    if weight.grad is None:
        raise SystemExit(f"a weight of {tuple(weight.shape)} got no gradient; nothing is compared")
    return weight.grad.clone()


def cpu_seconds(model: nn.Module, train: Train, samples: list[Sample]) -> float:
    model.zero_grad(set_to_none=True)
    start = time.process_time()
    train(samples)
    return time.process_time() - start


def check_agreement(case: str, ours: Cost, theirs: Cost, peer: str) -> None:
    """End the benchmark where two trainers do not find the same: it would compare nothing."""
    largest = max(gradient.abs().max().item() for gradient in theirs.gradients)
    loss = abs(ours.loss - theirs.loss)
    gap = max((own - other).abs().max().item() for own, other in zip(ours.gradients, theirs.gradients, strict=True))
    if not (loss < 1e-5 and gap <= 1e-5 * largest + 1e-6):
        raise SystemExit(
            f"{case}: ours and {peer} differ by {loss:.1e} in the loss (limit 1e-05) and by {gap:.1e} in a gradient "
            f"(largest {largest:.1e}, limit {1e-5 * largest + 1e-6:.1e}): no figures"
        )


if __name__ == "__main__":
    main()
