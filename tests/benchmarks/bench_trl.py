"""Speed and memory of the learner's train steps, and of the whole loop, beside TRL's GRPOTrainer.

`loop` and `loop_all_groups`: sampling, scoring and training of a real model, see trl_loop.py. The other cases train on
given episodes:
Qwen3 of 5.2 million parameters with random weights, one thread, fp32, equal advantages, AdamW; nothing is sampled.
`group_8`: a prompt of 256 tokens with 8 completions of 64. `react_10`: two episodes of one task with 10 calls each
(prompt 384, outputs 48, tool results 128). TRL trains them as 20 rows, every call with its whole prompt, in two halves.
Tokens are those of the rows including prompts, even if fewer are computed. The first step is dropped. The gradient
norms show that both do the same.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import attrs
import torch
from tests.benchmarks import trl_loop
from tests.benchmarks.environment import UnavailableError, environment
from tests.benchmarks.memory import peak_mb
from tests.benchmarks.report import Row, report
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl_core.batching import advantages
from agentrl_core.batching.credit import TreeCredit
from agentrl_core.batching.signal import training_signal
from agentrl_core.config.training_sections import TrainerConfig
from agentrl_core.losses import AggregationConfig
from agentrl_core.losses.grpo import GRPO
from agentrl_core.training.learner import Learner
from agentrl_core.types import Episode, Group, Interaction, Record, Sampling, run_lengths
from agentrl_testing.policy import write_tokenizer

TRL = ("trl==1.16.0", "transformers==5.23.0", "torch==2.13.0")
LR = 1e-5
BARS = "bars for group_8: tokens_per_cpu_s >= 4x TRL's, peak_rss_mb <= 0.6x"


@attrs.frozen(kw_only=True)
class Case:
    """Episodes of one task, all of one form."""

    episodes: int
    calls: int
    prompt: int
    output: int
    tool_result: int = 0
    accumulated: int = 1
    """Parts in which TRL takes its rows."""

    @property
    def rows(self) -> int:
        """Calls of all episodes."""
        return self.episodes * self.calls

    @property
    def tokens(self) -> int:
        """Prompts and outputs of all calls."""
        of_episode = [self.prompt + call * (self.output + self.tool_result) + self.output for call in range(self.calls)]
        return self.episodes * sum(of_episode)


CASES = {
    "group_8": Case(episodes=8, calls=1, prompt=256, output=64),
    "react_10": Case(episodes=2, calls=10, prompt=384, output=48, tool_result=128, accumulated=2),
}


def main() -> None:
    """Measure, print the table and write build/benchmarks/trl.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5, help="of which the first is not counted")
    parser.add_argument("--cases", nargs="+", default=[*CASES, *trl_loop.CASES], choices=[*CASES, *trl_loop.CASES])
    parser.add_argument("--loop-steps", type=int, default=3, help="of which the first is not counted")
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ours:
        print(json.dumps(train(arguments.ours)))  # noqa: T201 - to the process that asked
        return
    constraints = Path(__file__).parents[2] / "constraints.txt"
    steps_only = [name for name in arguments.cases if name in CASES]
    notes = [BARS] if steps_only else []
    try:
        peer = environment("trl", "-c", constraints, *TRL) / "bin/python"
    except UnavailableError as reason:
        notes.append(f"TRL is left out: {reason}")
        peer = None
    rows = [row for name in steps_only for row in measure(name, arguments.steps, peer, notes)]
    if loops := [name for name in arguments.cases if name in trl_loop.CASES]:
        rows += trl_loop.measure(loops, arguments.loop_steps, peer, notes)
    report("trl", rows, better="tokens_per_cpu_s: more is better; peak_rss_mb: less", notes=notes)


def measure(name: str, steps: int, peer: Path | None, notes: list[str]) -> list[Row]:
    """The rows of one case; ours and TRL's run one after the other, each in a process of its own."""
    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        task = prepare(case, steps, Path(folder))
        ours = _run([sys.executable, "-m", "tests.benchmarks.bench_trl", "--ours", str(task)])
        theirs = _run([str(peer), str(Path(__file__).parent / "trl_step.py"), str(task)]) if peer else None
    speeds = [case.tokens / statistics.median(found["cpu_s"][1:]) for found in (ours, theirs) if found]
    if theirs:
        first, second = ours["grad_norm"], theirs["grad_norm"]
        if abs(first - second) > 1e-3 * first:
            raise AssertionError(f"{name}: not the same work, the norms of the gradients are {first} and {second}")
        notes.append(f"{name}: norm of the first gradient {first:.6f}, TRL's {second:.6f}")
    pairs = {
        "tokens_per_cpu_s": (speeds[0], speeds[1] if theirs else None),
        "peak_rss_mb": (ours["peak_rss_mb"], theirs["peak_rss_mb"] if theirs else None),
    }
    return [
        Row(case=name, model="5.2M", metric=metric, ours=mine, peer=other, peer_name="trl" if theirs else "")
        for metric, (mine, other) in pairs.items()
    ]


def _run(command: list[str]) -> dict[str, Any]:
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def prepare(case: Case, steps: int, folder: Path) -> Path:
    """Write model, episodes and TRL's rows; returns the file that tells of them."""
    build_model(folder / "model")
    group = played(case, folder / "model")
    (folder / "group.pickle").write_bytes(pickle.dumps(group))
    taught = training_signal([group], credit=TreeCredit(), advantage=advantages.GRPO(), filters=[])
    rows = [
        {"prompt": prompt, "output": list(call.output_ids), "advantage": taught.advantages[call.id]}
        for episode in group.episodes
        for call, prompt in zip(episode.interactions, _prompts(episode), strict=True)
    ]
    task = {
        "model": str(folder / "model"),
        "group": str(folder / "group.pickle"),
        "rows": rows,
        "accumulated": case.accumulated,
        "steps": steps,
        "lr": LR,
        "folder": str(folder / "trl"),
    }
    (folder / "task.json").write_text(json.dumps(task), encoding="utf-8")
    return folder / "task.json"


def build_model(directory: Path) -> None:
    """Write a Qwen3 with random weights, and a tokenizer, which TRL asks for."""
    write_tokenizer(directory, context_length=4096)
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "qwen3",
        vocab_size=8192,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=2,
        pad_token_id=0,
        bos_token_id=None,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)


def played(case: Case, model_dir: Path) -> Group:
    """A group of random tokens with the model's own log-probs; every other record has the better reward."""
    source = random.Random(0)
    model = AutoModelForCausalLM.from_pretrained(model_dir).eval()
    prompt = _random(source, case.prompt)
    episodes = []
    for number in range(case.episodes):
        added = [prompt, *(_random(source, case.tool_result) for _ in range(case.calls - 1))]
        outputs = [_random(source, case.output) for _ in added]
        ids = [token for pair in zip(added, outputs, strict=True) for part in pair for token in part]
        with torch.no_grad():
            distribution = torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1], -1)
        of_all = distribution.gather(1, torch.tensor(ids[1:])[:, None]).squeeze(1).tolist()
        calls, end = [], 0
        for seq, (new, output) in enumerate(zip(added, outputs, strict=True)):
            start = end + len(new)
            end = start + len(output)
            calls.append(
                Interaction(
                    id=f"r{number}c{seq}",
                    record_id=f"r{number}",
                    seq=seq,
                    parent=calls[-1].id if calls else None,
                    prompt_ids=tuple(new),
                    output_ids=tuple(output),
                    logprobs=tuple(of_all[start - 1 : end - 1]),
                    versions=run_lengths([0] * len(output)),
                    messages=(),
                    output={"role": "assistant", "content": ""},
                    sampling=Sampling(temperature=1.0),
                )
            )
        record = Record(
            id=f"r{number}", run_id="run", task_id="task", group_id="g", sample_index=number, reward=float(number % 2)
        )
        episodes.append(Episode(record=record, interactions=tuple(calls)))
    return Group(id="g", run_id="run", task_id="task", index=0, episodes=tuple(episodes))


def _random(source: random.Random, count: int) -> list[int]:
    return [source.randrange(8, 8192) for _ in range(count)]


def _prompts(episode: Episode) -> list[list[int]]:
    """The whole prompt of each call of a linear episode."""
    prompts: list[list[int]] = []
    ids: list[int] = []
    for call in episode.interactions:
        ids = [*ids, *call.prompt_ids]
        prompts.append(ids)
        ids = [*ids, *call.output_ids]
    return prompts


def train(task: Path) -> dict[str, Any]:
    """Train on the group, in this process."""
    told = json.loads(task.read_text(encoding="utf-8"))
    group = pickle.loads(Path(told["group"]).read_bytes())
    learner = Learner(
        model_dir=Path(told["model"]),
        loss=GRPO(),
        aggregation=AggregationConfig(),
        advantage=advantages.GRPO(),
        credit=TreeCredit(),
        filters=[],
        config=TrainerConfig(lr=told["lr"], warmup_steps=0),
    )
    spent, norms = [], []
    for step in range(told["steps"]):
        before = time.process_time()
        norms.append(learner.step([group], step=step + 1, version=step)["loss/grad_norm"])
        spent.append(time.process_time() - before)
    return {"cpu_s": spent, "grad_norm": norms[0], "peak_rss_mb": peak_mb()}


if __name__ == "__main__":
    main()
