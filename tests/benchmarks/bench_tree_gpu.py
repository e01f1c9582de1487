"""Training with merged prefixes on a GPU, compared with the same packed tokens without merging.

A Qwen3 of the shape of 0.6B in bf16 with random weights. 16 calls share a prefix, so long that the separate calls have
2 to 10 times the tokens of the merged ones. The last eighth of each call's own tokens is trained. Forward and backward;
the smallest of the repeats counts, without the first one. MFU counts each multiplication that the model requires once:
6 per weight and token, those of visible pairs, and the head's on the trained tokens. Then one episode of 128k tokens in
one step, with gradient checkpointing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

import attrs
import torch
from tests.benchmarks.report import Row, report
from tests.benchmarks.tree.trainers import packed
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl_core.batching.samples import Sample
from agentrl_core.batching.trie import TokenTrie
from agentrl_core.training.optimizer import adamw
from agentrl_core.training.policy import Policy

CALLS = 16
TRAINED = 8
"""One of so many of a call's own tokens."""


@attrs.frozen(kw_only=True)
class Scale:
    """How large all is."""

    device: str = "cuda"
    attention: str = "flex"
    dtype: torch.dtype = torch.bfloat16
    layers: int = 28
    hidden: int = 1024
    heads: int = 16
    head: int = 128
    vocabulary: int = 151_936
    merged: int = 32_768
    episode: int = 131_072
    ratios: tuple[int, ...] = (2, 4, 6, 8, 10)
    repeats: int = 4


TINY = Scale(
    device="cpu",
    attention="rect",
    dtype=torch.float32,
    layers=2,
    hidden=32,
    heads=4,
    head=8,
    vocabulary=256,
    merged=480,
    episode=512,
    ratios=(2, 4),
    repeats=2,
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table and write build/benchmarks/tree_gpu.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a toy on the CPU, which only shows that all runs")
    parser.add_argument("--peak-tflops", type=float, default=989.0, help="of the GPU in bf16, for MFU; default: H200")
    options = parser.parse_args(arguments)
    if not (options.tiny or torch.cuda.is_available()):
        sys.exit(
            "tree_gpu: no CUDA device is visible; it measures FlexAttention on one. `--tiny` runs a toy on the CPU"
        )
    scale = TINY if options.tiny else Scale()
    model = qwen3(scale)
    rows = [*merging(model, scale, options.peak_tflops * 1e12), *long_episode(model, scale)]
    report("tree_gpu_tiny" if options.tiny else "tree_gpu", rows, notes=("bar: speedup >= 0.85 token_ratio",))


def qwen3(scale: Scale) -> Qwen3ForCausalLM:
    """Make the model."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=scale.vocabulary,
        hidden_size=scale.hidden,
        intermediate_size=3 * scale.hidden,
        num_hidden_layers=scale.layers,
        num_attention_heads=scale.heads,
        num_key_value_heads=scale.heads // 2,
        head_dim=scale.head,
        max_position_embeddings=scale.episode,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).to(scale.device, scale.dtype)


def merging(model: Qwen3ForCausalLM, scale: Scale, peak: float) -> list[Row]:
    """Merged against unmerged, for every ratio of tokens."""
    policy = Policy(model, attention=scale.attention)
    rows = []
    for ratio in scale.ratios:
        samples = group(scale, ratio)

        def train(*, merge: bool, samples: Sequence[Sample] = samples) -> int:
            model.zero_grad()
            return packed(policy, samples, merge=merge, max_tokens=scale.merged)[1]

        ours, merged = timed(lambda train=train: train(merge=True), scale)
        theirs, unmerged = timed(lambda train=train: train(merge=False), scale)
        case = f"ratio_{ratio}"
        rows += [
            Row(case=case, metric="tokens", ours=merged, peer=unmerged, peer_name="packed"),
            Row(case=case, metric="seconds", ours=ours, peer=theirs, peer_name="packed"),
            Row(case=case, metric="speedup", ours=theirs / ours, peer=unmerged / merged, peer_name="token_ratio"),
            Row(case=case, metric="mfu", ours=operations(model, samples) / ours / peak),
        ]
    return rows


def long_episode(model: Qwen3ForCausalLM, scale: Scale) -> list[Row]:
    """One optimizer step on one long call."""
    policy = Policy(model, attention=scale.attention, gradient_checkpointing=True)
    optimizer = adamw(policy.masters, lr=1e-6, betas=(0.9, 0.95), weight_decay=0.0)
    episode = [sample(tokens(scale, scale.episode, 1), scale.episode - scale.episode // TRAINED, 0)]

    def step() -> int:
        policy.masters.zero_grad()
        forwarded = packed(policy, episode, merge=True, max_tokens=scale.episode)[1]
        optimizer.step()
        return forwarded

    seconds, forwarded = timed(step, scale)
    rows = [Row(case="long_episode", metric="seconds", ours=seconds)]
    rows.append(Row(case="long_episode", metric="tokens", ours=forwarded))
    if scale.device == "cuda":
        peak = torch.cuda.max_memory_allocated() / 1e9
        rows.append(Row(case="long_episode", metric="peak_gb", ours=peak))
    return rows


def timed(run: Callable[[], int], scale: Scale) -> tuple[float, int]:
    """Seconds of the fastest repeat but the first, and what it returns."""
    best, result = float("inf"), 0
    for repeat in range(scale.repeats):
        if scale.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        result = run()
        if scale.device == "cuda":
            torch.cuda.synchronize()
        if repeat:
            best = min(best, time.perf_counter() - start)
    return best, result


def group(scale: Scale, ratio: int) -> list[Sample]:
    """Calls with a common trunk, so long that merging leaves one token of `ratio`."""
    # trunk + CALLS own = merged, CALLS (trunk + own) = ratio merged
    trunk = (ratio - 1) * scale.merged // (CALLS - 1)
    own = (scale.merged - trunk) // CALLS
    start = tokens(scale, trunk, 0)
    return [
        sample(start + tokens(scale, own, call + 1), trunk + own - max(1, own // TRAINED), call)
        for call in range(CALLS)
    ]


def tokens(scale: Scale, count: int, seed: int) -> list[int]:
    """Draw token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(scale.vocabulary, (count,), generator=generator).tolist()


def sample(ids: list[int], first: int, number: int) -> Sample:
    """One call, trained from its token `first` on."""
    count = len(ids) - first
    return Sample(
        ids=ids,
        positions=[*range(first, len(ids))],
        logprobs=[-5.0] * count,
        temperatures=[1.0] * count,
        advantages=[1.0 if number % 2 else -1.0] * count,
        versions=[0] * count,
        interactions=[number] * count,
        sequences=[number] * count,
        record=number,
        group=0,
    )


def operations(model: Qwen3ForCausalLM, samples: Sequence[Sample]) -> float:
    """Floating-point operations of the merged calls, forward and backward."""
    config = model.config
    trie = TokenTrie.build(one.ids[:-1] for one in samples)
    pairs = sum(trie.positions) + len(trie.ids)
    embedding = model.get_input_embeddings().weight.numel()
    body = sum(parameter.numel() for parameter in model.parameters()) - embedding
    trained = sum(len(one.positions) for one in samples)
    attention = config.num_hidden_layers * config.num_attention_heads * config.head_dim * 2 * pairs
    return 6.0 * (body * len(trie.ids) + attention + embedding * trained)


if __name__ == "__main__":
    main()
