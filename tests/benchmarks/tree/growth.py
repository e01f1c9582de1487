"""Growth of time and memory with the tokens of a group: one layer, each cell in a new process."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from tests.benchmarks.memory import peak_mb, used_mb
from tests.benchmarks.report import Row
from tests.benchmarks.tree.cases import group_of
from tests.benchmarks.tree.trainers import packed, qwen3

from agentrl_core.training.policy import Policy

if TYPE_CHECKING:
    from agentrl_core.batching.samples import Sample

MODEL = "1 layer of 128"
TOKENS = {"grow_4k": 4096, "grow_12k": 12288, "grow_32k": 32768}
"""Case -> tokens of its group after merging."""
PEERS = {"grow_4k": ("packed", "dense"), "grow_12k": ("dense",), "grow_32k": ()}
"""Who else is measured: `dense` merges as ours and attends by a mask of all tokens by all; only its memory counts."""
ENOUGH_S = 15
"""CPU seconds of a cell after which no further repeat begins."""

_SHORTEST = "grow_4k"


def measure(cases: list[str], repeats: int) -> Iterator[Row]:
    """Yield the rows of the cases, which need `grow_4k` to be compared with."""
    found = {case: {name: _run(case, name, repeats) for name in ("ours", *PEERS[case])} for case in cases}
    for case, cells in found.items():
        yield from _rows(case, cells, found.get(_SHORTEST, {}).get("ours"))


def _rows(case: str, cells: Mapping[str, Mapping[str, float]], shortest: Mapping[str, float] | None) -> Iterator[Row]:
    ours = cells["ours"]
    if "packed" in cells:
        speeds = [ours["call_tokens"] / cells[name]["cpu_s"] for name in ("ours", "packed")]
        yield Row(
            case=case, model=MODEL, metric="speedup_vs_packed", ours=speeds[0], peer=speeds[1], peer_name="packed"
        )
    yield Row(case=case, model=MODEL, metric="token_ratio", ours=ours["call_tokens"] / ours["tokens"])
    for name in PEERS[case]:
        yield Row(
            case=case, model=MODEL, metric="peak_mb", ours=ours["peak_mb"], peer=cells[name]["peak_mb"], peer_name=name
        )
    if not PEERS[case]:
        yield Row(case=case, model=MODEL, metric="peak_mb", ours=ours["peak_mb"])
    longer = shortest is not None and case != _SHORTEST
    yield Row(
        case=case,
        model=MODEL,
        metric="cpu_s_per_token",
        ours=ours["cpu_s"] / ours["tokens"],
        peer=shortest["cpu_s"] / shortest["tokens"] if longer and shortest else None,
        peer_name=f"ours, {_SHORTEST}" if longer else "",
    )


def _run(case: str, name: str, repeats: int) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.bench_tree", "--repeats", str(repeats), "--cell", case, name]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout))


def cell(case: str, name: str, repeats: int) -> dict[str, float]:
    """Train a group in this process, the first time not counted; memory is over what model and group take."""
    torch.set_num_threads(1)
    model = qwen3(layers=1, hidden=128)
    policy = Policy(model, attention="dense" if name == "dense" else "auto")
    samples = group_of(TOKENS[case])
    before = used_mb()
    _, tokens = _step(policy, samples, name)
    spent: list[float] = []
    while name != "dense" and len(spent) < repeats and sum(spent) < ENOUGH_S:
        spent.append(_step(policy, samples, name)[0])
    return {
        "cpu_s": min(spent, default=math.nan),
        "tokens": tokens,
        "call_tokens": sum(len(sample.ids) for sample in samples),
        "peak_mb": peak_mb() - before,
    }


def _step(policy: Policy, samples: list[Sample], name: str) -> tuple[float, int]:
    policy.model.zero_grad(set_to_none=True)
    start = time.process_time()
    _, tokens = packed(policy, samples, merge=name != "packed", max_tokens=2**31)
    return time.process_time() - start, tokens
