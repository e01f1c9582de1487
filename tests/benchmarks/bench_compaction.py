"""CPU seconds of training a record with K branches of compacted contexts: one merged step against one per branch.

An episode begins with a long prompt (system prompt, tools, task). Its context is compacted K - 1 times: a summary is
sampled at the end of a branch, and the next branch begins with prompt and summary. `ours` is forward, GRPO's loss and
backward of all branches as one trie. `per_branch` makes one forward and backward for each branch, as trainers do that
know only sequences; what branches share is in the loss of the first, so both have the same loss and gradients, which
is checked. Both run in turns in one process with one thread; the smallest CPU seconds of the repeats count, and the
first step is dropped. Qwen3 with random weights, 2 layers of 512, 2048 token ids, fp32.

Sharing saves no work of the output head, which computes sampled tokens only, and little of attention, as the tokens of
every branch look back at the prompt. Width, vocabulary and lengths give both about the share of the time that they have
in models of some billions of parameters at contexts of some thousand tokens: an eighth for attention, a twentieth for
the head. With a width of 256, 8192 token ids and a prompt of 1024, attention alone takes two fifths, and 16 branches
reach 0.76 of the token ratio.

`speedup` rows are tokens per CPU second, counting every branch whole; their ratio is the speed-up. `token_ratio` is the
number of those tokens per token of the trie: the most that sharing can save. `of_token_ratio` is the first as a share
of the second.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import sys
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from tests.benchmarks.bench_tree import Bar, Cost, check_agreement, cpu_seconds, first_step
from tests.benchmarks.report import Row, report
from tests.benchmarks.tree.trainers import AGGREGATION, MAX_TOKENS, Train, backward, packed, qwen3
from torch import nn

from agentrl_core.batching.packing import pack
from agentrl_core.batching.samples import Sample
from agentrl_core.training.policy import Policy

MODEL = "2 layers of 512"
VOCABULARY = 2048
BRANCHES = (1, 4, 16)
PROMPT, SUMMARY, COMPLETION, TOOL_OUTPUT, TURNS = 256, 24, 16, 32, 2
"""Tokens of what all branches begin with, of each summary, of each call's completion and of a tool's result; calls of a
branch before its summary."""
ENOUGH_S = 20
"""CPU seconds of a case after which no further repeat begins."""

BARS = tuple(Bar(f"branches_{count}", "of_token_ratio", "", least=0.85) for count in BRANCHES)


def main() -> None:
    """Measure, print the table and write build/benchmarks/compaction.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="fewer of what takes long")
    parser.add_argument("--branches", type=int, nargs="+", default=BRANCHES)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = qwen3(layers=2, hidden=512, vocabulary=VOCABULARY)
    policy = Policy(model)
    rows: list[Row] = []
    for count in arguments.branches:
        print(f"{count} branches …", file=sys.stderr, flush=True)  # noqa: T201 - all of it takes a while
        rows += measure(count, model, policy, arguments.repeats)
    report("compaction", rows, notes=[line for bar in BARS if (line := bar.judge(rows))])


def record(branches: int) -> list[Sample]:
    """Return the branches of an episode, each with its sampled tokens in the loss; the same every time."""
    draw = random.Random(branches)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(VOCABULARY) for _ in range(count)]

    prompt, summary, samples = tokens(PROMPT), [], []
    for branch in range(branches):
        ids, positions = [*prompt, *summary], []
        for turn in range(TURNS + 1):
            summary = tokens(SUMMARY if turn == TURNS else COMPLETION)
            positions += range(len(ids), len(ids) + len(summary))
            ids += summary
            if turn < TURNS:
                ids += tokens(TOOL_OUTPUT)
        count = len(positions)
        samples.append(
            Sample(
                ids=ids,
                positions=positions,
                logprobs=[draw.gauss(-math.log(VOCABULARY), 0.1) for _ in range(count)],
                temperatures=[1.0] * count,
                advantages=[draw.uniform(-1, 1)] * count,
                versions=[0] * count,
                interactions=[branch] * count,
                sequences=[branch] * count,
                record=0,
                group=0,
            )
        )
    return samples


def per_branch(policy: Policy, samples: Sequence[Sample]) -> tuple[float, int]:
    """Add the gradients of one forward and backward per branch, with the denominators of the whole record."""
    denominators = pack(samples, max_tokens=MAX_TOKENS, config=AGGREGATION, merge=False).denominators
    loss, forwarded = 0.0, 0
    for sample in samples:
        (batch,) = pack([sample], max_tokens=MAX_TOKENS, config=AGGREGATION, merge=False).micro_batches
        logprobs, entropy = policy.logprobs(batch)
        loss += backward(batch.view(logprobs, entropy, version=0), denominators)
        forwarded += batch.tokens
    return loss, forwarded


def measure(branches: int, model: nn.Module, policy: Policy, repeats: int) -> Iterator[Row]:
    """Yield the rows of one number of branches."""
    samples, case = record(branches), f"branches_{branches}"
    contenders: dict[str, Train] = {
        "ours": partial(packed, policy, merge=True, max_tokens=1 << 20),
        "per_branch": partial(per_branch, policy),
    }
    costs: dict[str, Cost] = {name: first_step(model, train, samples) for name, train in contenders.items()}
    check_agreement(case, costs["ours"], costs["per_branch"], "per_branch")
    spent = 0.0
    for _ in range(repeats):
        if spent > ENOUGH_S:
            break
        for name, train in contenders.items():
            gc.collect()
            seconds = cpu_seconds(model, train, samples)
            costs[name].cpu_s = min(costs[name].cpu_s, seconds)
            spent += seconds
    ours, peer = costs["ours"], costs["per_branch"]
    speeds = peer.tokens / ours.cpu_s, peer.tokens / peer.cpu_s
    ratio = peer.tokens / ours.tokens
    yield Row(case=case, model=MODEL, metric="speedup", ours=speeds[0], peer=speeds[1], peer_name="per_branch")
    yield Row(case=case, model=MODEL, metric="token_ratio", ours=ratio)
    yield Row(case=case, model=MODEL, metric="of_token_ratio", ours=speeds[0] / speeds[1] / ratio)
    yield Row(case=case, model=MODEL, metric="peak_mb", ours=ours.peak_mb, peer=peer.peak_mb, peer_name="per_branch")


if __name__ == "__main__":
    main()
