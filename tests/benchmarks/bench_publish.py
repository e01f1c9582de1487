"""Bytes and seconds of a published version: a whole directory, and a delta to the version before.

The model has the shape of Qwen3-0.6B. Between two versions lies one step at the learning rate 1e-6 on float32 master
weights, of which the module has the bfloat16 values. Weights and steps are made up: weights are normal with the
standard deviation 0.02, and each moves by the learning rate times a normal number that is cut off at 1, which is about
as far as AdamW moves a weight at most. `delta_fp32`: the same in float32.

`disk` is compared with transformers' own `save_pretrained`, without digests; the bytes of a delta with those of `disk`.
`stall`: loading a whole directory, for which a server pauses, against a training step. That takes `--step-s` seconds,
or is measured with `--step-tasks`: the learner's step alone, on one thread, in bfloat16 with float32 masters, for so
many tasks of 8 records, each with its task's prompt of 256 tokens and 64 sampled ones. A run's step samples besides.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks.report import Row, report
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl_core.batching.packing import pack
from agentrl_core.batching.samples import Sample
from agentrl_core.losses.aggregate import AggregationConfig
from agentrl_core.losses.grpo import GRPO
from agentrl_core.training.metrics import Means
from agentrl_core.training.optimizer import Updater, adamw
from agentrl_core.training.policy import Policy
from agentrl_core.weights.delta_writer import DeltaWriter
from agentrl_core.weights.local_copies import LocalCopies
from agentrl_core.weights.place import WeightsPlace
from agentrl_core.weights.saving import folder_bytes

BARS = ("bars: delta bytes <= 0.1 of disk's; disk seconds: no bar; stall <= 0.01 of a step",)
LR = 1e-6
VOCABULARY = 151_936
RECORDS, PROMPT_TOKENS, OUTPUT_TOKENS = 8, 256, 64
"""Of a task, in the step that is measured."""
CASES = {"delta": torch.bfloat16, "delta_fp32": torch.float32}


def main() -> None:
    """Measure all cases and report them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=28, help="layers of the model; Qwen3-0.6B has 28")
    parser.add_argument("--steps", type=int, default=3, help="versions after the first")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--threads", type=int, default=1, help="threads that compute deltas")
    parser.add_argument("--folder", help="folder for all files; None: the system's temporary folder")
    parser.add_argument("--step-s", type=float, default=60.0, help="seconds of a training step, for the stall")
    parser.add_argument("--step-tasks", type=int, help="measure the step with so many tasks, in place of --step-s")
    options = parser.parse_args()
    options.step_cpu_s = None
    torch.set_num_threads(1)
    rows: list[Row] = []
    if options.step_tasks is not None:
        options.step_s, options.step_cpu_s = step_seconds(options.layers, options.step_tasks)
    for case in options.cases:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            rows += measure(options, Path(folder), CASES[case], case)
    report("publish", rows, better="less is better", notes=BARS)


def measure(options: argparse.Namespace, root: Path, dtype: torch.dtype, case: str) -> Iterator[Row]:
    """Publish some versions in both ways, and read them."""
    model, step = trained(options.layers, dtype)
    size = f"{sum(p.numel() for p in model.parameters()) / 1e9:.2f}B"
    disk = WeightsPlace(root / "disk")
    delta = WeightsPlace(root / "delta", deltas=DeltaWriter(root / "local", threads=options.threads))
    reader = LocalCopies(WeightsPlace(delta.root), root / "server", notice=print)
    found: dict[str, list[float]] = {}

    def timed(name: str, action: Callable[[], Any]) -> Any:
        cpu, wall = time.process_time(), time.perf_counter()
        result = action()
        found.setdefault(f"{name}_cpu_s", []).append(time.process_time() - cpu)
        found.setdefault(f"{name}_s", []).append(time.perf_counter() - wall)
        return result

    def read(version: int) -> None:
        with reader.reading(version):
            pass

    delta.write(0, model)
    read(0)
    for version in range(1, options.steps + 1):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        step()
        changed = sum(int((old != new).sum()) for old, new in zip(before, model.parameters(), strict=True))
        found.setdefault("weights_changed", []).append(changed / sum(old.numel() for old in before))
        del before
        timed("plain", lambda: model.save_pretrained(root / "plain"))
        shutil.rmtree(root / "plain")
        whole = timed("write_disk", lambda version=version: disk.write(version, model))
        part = timed("write_delta", lambda version=version: delta.write(version, model))
        timed("read_delta", lambda version=version: read(version))
        found.setdefault("disk_bytes", []).append(folder_bytes(whole))
        found.setdefault("delta_bytes", []).append(folder_bytes(part))
    with reader.reading(options.steps) as folder:
        stalled = timed("load", lambda: Qwen3ForCausalLM.from_pretrained(folder, dtype=dtype))
        same = all(torch.equal(one, other) for one, other in zip(stalled.parameters(), model.parameters(), strict=True))
        assert same, "the server has other weights than the trainer"
    delta.close()
    reader.close()
    middle = {name: statistics.median(values) for name, values in found.items()}
    yield Row(
        case=case, model=size, metric="bytes", ours=middle["delta_bytes"], peer=middle["disk_bytes"], peer_name="disk"
    )
    yield Row(case=case, model=size, metric="weights_changed", ours=middle["weights_changed"])
    for name in ("s", "cpu_s"):
        yield Row(
            case=case, model=size, metric=f"write_{name}", ours=middle[f"write_delta_{name}"],
            peer=middle[f"write_disk_{name}"], peer_name="disk",
        )  # fmt: skip
        yield Row(case=case, model=size, metric=f"read_{name}", ours=middle[f"read_delta_{name}"])
        yield Row(
            case=case.replace("delta", "disk"), model=size, metric=f"write_{name}", ours=middle[f"write_disk_{name}"],
            peer=middle[f"plain_{name}"], peer_name="save_pretrained",
        )  # fmt: skip
    for name, step_s in (("load_s", options.step_s), ("load_cpu_s", options.step_cpu_s)):
        yield Row(
            case="stall" if dtype is torch.bfloat16 else "stall_fp32", model=size, metric=name, ours=middle[name],
            peer=step_s, peer_name="step" if step_s is not None else "",
        )  # fmt: skip


def step_seconds(layers: int, num_tasks: int) -> tuple[float, float]:
    """Return seconds and CPU seconds of a learner's step, after a small one that makes the optimizer's state."""
    policy = Policy(random_model(layers).to(torch.bfloat16))
    optimizer = adamw(policy.masters, lr=LR, betas=(0.9, 0.95), weight_decay=0.0)
    updater = Updater(policy, GRPO(), AggregationConfig(), max_grad_norm=1.0)

    def step(samples: list[Sample]) -> None:
        update = pack(samples, max_tokens=1024, config=AggregationConfig(), merge=policy.merges, device=policy.device)
        updater.update(optimizer, update, means=Means())

    step(records(0)[:1])
    samples = list(chain.from_iterable(map(records, range(num_tasks))))
    cpu, wall = time.process_time(), time.perf_counter()
    step(samples)
    return time.perf_counter() - wall, time.process_time() - cpu


def records(task: int) -> list[Sample]:
    """Return the records of a task: random tokens after a common prompt."""
    generator = torch.Generator().manual_seed(task)

    def tokens(count: int) -> list[int]:
        return torch.randint(VOCABULARY, (count,), generator=generator).tolist()

    prompt = tokens(PROMPT_TOKENS)
    return [
        Sample(
            ids=prompt + tokens(OUTPUT_TOKENS),
            positions=[*range(PROMPT_TOKENS, PROMPT_TOKENS + OUTPUT_TOKENS)],
            logprobs=[-12.0] * OUTPUT_TOKENS,  # about those of a model that knows nothing
            temperatures=[1.0] * OUTPUT_TOKENS,
            advantages=[1.0 if number % 2 else -1.0] * OUTPUT_TOKENS,
            versions=[0] * OUTPUT_TOKENS,
            interactions=[number] * OUTPUT_TOKENS,
            sequences=[number] * OUTPUT_TOKENS,
            record=number,
            group=task,
        )
        for number in range(task * RECORDS, (task + 1) * RECORDS)
    ]


def random_model(layers: int) -> Any:
    """Return a model with the shape of Qwen3-0.6B, but for the number of layers."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
        max_position_embeddings=40960,
    )
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config)


def trained(layers: int, dtype: torch.dtype) -> tuple[Any, Callable[[], None]]:
    """Return a model in training, and a function that takes one step."""
    model = random_model(layers).to(dtype)
    generator = torch.Generator().manual_seed(1)

    @torch.no_grad()
    def step() -> None:
        for parameter in model.parameters():
            master = parameter.float()
            if dtype is torch.bfloat16:
                # A weight is its master rounded, so the master is any number that rounds to the weight: the state of
                # all of them, 7 GB with the moments, is not needed.
                spacing = torch.exp2(torch.floor(torch.log2(master.abs().clamp_min(1e-30))) - 7)
                master = master + (torch.rand(master.shape, generator=generator) - 0.5) * spacing * 0.999
            master -= LR * torch.randn(master.shape, generator=generator).clamp(-1, 1)
            parameter.copy_(master)

    return model, step


if __name__ == "__main__":
    main()
