"""Memory and CPU seconds of log-probs and their gradients, compared with log_softmax and linear_cross_entropy.

Every cell is a new process with one thread that runs forward and backward, with a weight per token as in a policy
gradient. `peak_mb` is the rise of its memory above the inputs, including the gradients (74 MB for the head). All cells
of a case run in turns, and the smallest of the repeats counts. `all_logits` needs 10 GB and runs once if that is free.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import psutil
import torch
from tests.benchmarks.memory import forget_peak, peak_mb, used_mb
from tests.benchmarks.report import Row, report
from torch import Tensor
from torch.nn import functional

from agentrl_core.losses.logprob import token_logprobs

VOCABULARY = 151_936
BARS = "bars: peak_mb <= 500 and no more cpu_s than all_logits at 4096 tokens"

ALL_LOGITS = {"all_logits": 3.2, "all_logits_entropy": 8}
"""How many times the size of the logits these methods need at most."""

Method = Callable[[Tensor, Tensor, Tensor], Tensor]
"""hidden [N, H], weight [V, H], targets [N] -> what stands for the loss, a scalar."""


@attrs.frozen(kw_only=True)
class Case:
    """One shape, and who is measured on it."""

    tokens: int
    hidden: int
    ours: str = "ours"
    peers: tuple[str, ...] = ("all_logits",)
    dtype: str = "float32"


CASES = {
    "t4096": Case(tokens=4096, hidden=128),
    "t4096_entropy": Case(tokens=4096, hidden=128, ours="ours_entropy", peers=("ours",)),
    "t1024_entropy_trained": Case(tokens=1024, hidden=128, ours="ours_entropy_trained", peers=("all_logits_entropy",)),
    "t4096_bf16": Case(tokens=4096, hidden=128, dtype="bfloat16", peers=()),
    "t512_wide": Case(tokens=512, hidden=1024),
    "t512": Case(tokens=512, hidden=128, peers=("linear_cross_entropy",)),  # which takes minutes for the others
}


def main() -> None:
    """Measure, print the table and write build/benchmarks/logprob.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--cell", nargs=2, metavar=("CASE", "METHOD"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        name, method = arguments.cell
        print(json.dumps(cell(CASES[name], METHODS[method])))  # noqa: T201 - to the process that asked
        return
    notes = [BARS]
    rows = [row for name in arguments.cases for row in measure(name, arguments.repeats, notes)]
    report("logprob", rows, better="less is better", notes=notes)


def measure(name: str, repeats: int, notes: list[str]) -> Iterator[Row]:
    """Yield the rows of one case."""
    case = CASES[name]
    found: dict[str, list[dict[str, float]]] = {}
    for repeat, method in itertools.product(range(repeats), (case.ours, *case.peers)):
        wanted = 4 * case.tokens * VOCABULARY * ALL_LOGITS.get(method, 0)
        if psutil.virtual_memory().available < wanted:
            notes.append(f"{method} is left out of {name}: it wants {wanted / 2**30:.0f} GB of free memory")
        elif not (repeat and wanted > 2**32):
            found.setdefault(method, []).append(run_cell(name, method))
    least = {
        method: {metric: min(item[metric] for item in cells) for metric in cells[0]} for method, cells in found.items()
    }
    for metric in ("peak_mb", "cpu_s"):
        ours = least[case.ours][metric]
        peers = [peer for peer in case.peers if peer in least]
        for peer in peers:
            yield Row(case=name, metric=metric, ours=ours, peer=least[peer][metric], peer_name=peer)
        if not peers:
            yield Row(case=name, metric=metric, ours=ours)


def run_cell(name: str, method: str) -> dict[str, float]:
    """Measure one method in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_logprob", "--cell", name, method]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout))


def cell(case: Case, method: Method) -> dict[str, float]:
    """Run one method once, in this process."""
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(0)
    dtype = getattr(torch, case.dtype)
    weight = torch.empty(VOCABULARY, case.hidden, dtype=dtype).normal_(std=0.05, generator=random).requires_grad_()
    hidden = torch.empty(case.tokens, case.hidden, dtype=dtype).normal_(generator=random).requires_grad_()
    targets = torch.randint(VOCABULARY, (case.tokens,), generator=random)
    method(hidden[:8], weight[:64], targets[:8] % 64).backward()  # libraries set themselves up
    hidden.grad = weight.grad = None
    before = used_mb()
    forget_peak()
    start = time.process_time()
    method(hidden, weight, targets).backward()
    return {"cpu_s": time.process_time() - start, "peak_mb": peak_mb() - before}


def _weighed(logprobs: Tensor, entropy: Tensor | None = None) -> Tensor:
    """A sum in which every token has its own advantage."""
    advantages = torch.linspace(-1, 1, len(logprobs))
    total = (logprobs * advantages).sum() / len(logprobs)
    return total if entropy is None else total + 0.01 * entropy.mean()


def ours(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return _weighed(token_logprobs(hidden, weight, targets)[0])


def ours_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The entropy as a metric, which is all that most losses want."""
    return _weighed(token_logprobs(hidden, weight, targets, entropy=True)[0])


def ours_entropy_trained(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return _weighed(*token_logprobs(hidden, weight, targets, entropy=True))


def all_logits(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    distribution = torch.log_softmax((hidden @ weight.T).float(), -1)
    return _weighed(distribution.gather(1, targets[:, None]).squeeze(1))


def all_logits_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    distribution = torch.log_softmax((hidden @ weight.T).float(), -1)
    entropy = -(distribution.exp() * distribution).sum(-1)
    return _weighed(distribution.gather(1, targets[:, None]).squeeze(1), entropy)


def linear_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    options: Any = torch.nn.LinearCrossEntropyOptions()  # without, torch makes all logits
    return _weighed(-functional.linear_cross_entropy(hidden, weight, targets, reduction="none", options=options))


METHODS: dict[str, Method] = {
    method.__name__: method
    for method in (ours, ours_entropy, ours_entropy_trained, all_logits, all_logits_entropy, linear_cross_entropy)
}

if __name__ == "__main__":
    main()
