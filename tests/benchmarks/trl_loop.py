"""Case `loop` of the benchmark `trl`: the whole loop of agentrl and of TRL's GRPOTrainer on a real model.

SmolLM2-135M-Instruct in fp32, one thread. A step samples 16 yes-or-no questions with 8 replies of at most 8 tokens
each, scores them by the same rule, and trains once on them. `loop` is each side as its users run it: agentrl drops
groups whose rewards are all equal, TRL trains on them. In `loop_all_groups` agentrl trains on every group, too. TRL
runs twice: with 8 rows at a time, its default (`trl`), and with all 128 at once (`trl_128`). The first step is dropped.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tests.benchmarks.memory import peak_mb
from tests.benchmarks.report import Row

if TYPE_CHECKING:
    from agentrl_core.api.trackers import StepReport

TASKS, GROUP, MAX_TOKENS, LR = 16, 8, 8, 1e-6
PEERS = {"trl": 8, "trl_128": TASKS * GROUP}
"""Name of a peer -> rows that TRL takes at a time (`per_device_train_batch_size`)."""
CASES = {"loop": [{"use": "zero_variance"}], "loop_all_groups": []}
"""Case -> agentrl's filters."""
BARS = (
    "bars: records_per_cpu_s >= 9x TRL's in loop, >= 5x in loop_all_groups; peak_rss_mb <= 0.5x in both",
    "a record is a sampled reply, whether or not its group is trained",
)


def measure(names: list[str], steps: int, peer: Path | None, notes: list[str]) -> list[Row]:
    """Return the rows of these cases; each side runs in a process of its own, one after the other, TRL once for all."""
    from agentrl_smollm2 import build

    notes.extend(BARS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder / "model")
        write_tasks(folder / "tasks.jsonl", steps)
        told = {"folder": name, "steps": steps, "tasks": TASKS, "group": GROUP, "max_tokens": MAX_TOKENS, "lr": LR}
        (folder / "told.json").write_text(json.dumps(told), encoding="utf-8")
        ours = {
            case: _run([sys.executable, "-m", "tests.benchmarks.trl_loop", case, str(folder / "told.json")])
            for case in names
        }
        theirs = {name: _peer(peer, folder, told | {"rows": at_once}) for name, at_once in PEERS.items() if peer}
    notes += [f"mean reward of {name}: {_mean(found['rewards'])}" for name, found in (ours | theirs).items()]
    rows = []
    for case, mine in ours.items():
        for metric, value in _metrics(mine).items():
            if not theirs:
                rows.append(Row(case=case, model="135M", metric=metric, ours=value))
            for name, found in theirs.items():
                other = _metrics(found)[metric]
                rows.append(Row(case=case, model="135M", metric=metric, ours=value, peer=other, peer_name=name))
    return rows


def _peer(python: Path, folder: Path, told: dict[str, Any]) -> dict[str, Any]:
    (folder / "peer.json").write_text(json.dumps(told), encoding="utf-8")
    return _run([str(python), str(Path(__file__).parent / "trl_grpo.py"), str(folder / "peer.json")])


def _metrics(found: dict[str, Any]) -> dict[str, float]:
    return {
        "records_per_cpu_s": TASKS * GROUP / statistics.median(found["cpu_s"][1:]),
        "peak_rss_mb": found["peak_rss_mb"],
    }


def _mean(rewards: list[float]) -> str:
    return f"{statistics.fmean(rewards):.3f}"


def _run(command: list[str]) -> dict[str, Any]:
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def write_tasks(path: Path, steps: int) -> None:
    """Write one question per group of all steps: is a number even or odd?"""
    draw = random.Random(0)
    rows = []
    for index in range(TASKS * steps):
        number, kind = draw.randrange(1000), draw.choice(("even", "odd"))
        text = f"Is {number} an {kind} number? Answer yes or no."
        right = (number % 2 == 0) == (kind == "even")
        chat = [{"role": "user", "content": text}]
        rows.append({"id": str(index), "messages": chat, "answer": "yes" if right else "no"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def first_word(reply: str, reference: str) -> float:
    """Return 1 if the reply's first word is the reference, whatever its case and what follows; as in trl_grpo.py."""
    words = re.findall("[a-z]+", reply.lower())
    return float(words[:1] == [reference])


class CpuTracker:
    """Tracker that keeps the CPU seconds of this process between the ends of two steps, and the mean rewards."""

    # Of the class, because the run makes the instance.
    spent: ClassVar[list[float]] = []
    rewards: ClassVar[list[float]] = []

    def __init__(self) -> None:
        self._before = 0.0

    def step_finished(self, report: StepReport) -> None:
        """Keep a step."""
        now = time.process_time()
        self.spent.append(now - self._before)
        self.rewards.append(report.metrics["reward/mean"])
        self._before = now

    def __getattr__(self, name: str) -> Any:
        """Ignore all other events."""
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_: None


def train(case: str, told: dict[str, Any]) -> dict[str, Any]:
    """Train in this process."""
    from agentrl_core import Trainer
    from agentrl_core.config import parse

    folder = Path(told["folder"])
    config = parse(
        {
            "name": case,
            "output_dir": str(folder / "runs"),
            "model": {"path": str(folder / "model")},
            "data": {"train": str(folder / "tasks.jsonl"), "default_scorer": "first_word"},
            "scorers": {"first_word": {"use": "tests.benchmarks.trl_loop:first_word"}},
            "workflow": "single_turn",
            "sampling": {"max_tokens": told["max_tokens"]},
            "rollout": {"group_size": told["group"], "tasks_per_step": told["tasks"], "max_concurrent_rollouts": 128},
            "filters": CASES[case],
            "trainer": {"steps": told["steps"], "lr": told["lr"], "warmup_steps": 0, "save_steps": 10_000},
            "eval": {"every": 0},
            "trackers": [{"use": "tests.benchmarks.trl_loop:CpuTracker"}],
        }
    )
    summary = Trainer(config).train()
    if summary.status != "finished":
        raise RuntimeError(f"the run ended as {summary.status}: {summary.error}")
    return {"cpu_s": CpuTracker.spent, "rewards": CpuTracker.rewards, "peak_rss_mb": peak_mb()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("told", type=Path)
    given = parser.parse_args()
    # As a module, not as a script: the run imports it again, to find the tracker.
    from tests.benchmarks import trl_loop

    found = trl_loop.train(given.case, json.loads(given.told.read_text(encoding="utf-8")))
    print(json.dumps(found))  # noqa: T201 - to the process that asked
