"""Train the same policy with several losses: `python cookbook/losses/compare.py [LOSS …] [OPTION=VALUE …]`.

Each run has the config beside this file, the same seed and the same budget. Each loss brings its own aggregation and
advantage. The script prints a table, and writes rewards.png to the working directory.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_core import Trainer
from agentrl_core.trackers.curve import draw_side_by_side
from agentrl_core.trackers.jsonl import FILE_NAME, read_events

if TYPE_CHECKING:
    from agentrl_core.api.trackers import EvalReport, RunSummary

CONFIG = Path(__file__).with_name("config.yaml")
VARIANTS: Mapping[str, Sequence[str]] = {
    "grpo": ["loss={use: grpo, clip: 0.2}"],
    "dr_grpo": ["loss={use: dr_grpo, horizon: 72}"],
    "gspo": ["loss={use: gspo}"],
    "cispo": ["loss={use: cispo, cap: 5.0}"],
    "minirl": ["loss={use: minirl}"],
}
"""Name -> overrides of the config. Each entry is one run and one panel of the picture."""


def rewards_of(summary: RunSummary) -> list[float]:
    """Return the mean training reward of each step."""
    events = read_events(Path(summary.directory) / FILE_NAME)
    return [event["metrics"]["reward/mean"] for event in events if event["event"] == "step_finished"]


def with_error(report: EvalReport) -> str:
    """Return the held-out reward of an evaluation with its 95 % interval."""
    (name,) = report.rewards
    return f"{report.rewards[name]:.3f} ± {1.96 * report.errors[name]:.3f}"


def report(summaries: Mapping[str, RunSummary]) -> None:
    """Print the table and draw the picture."""
    curves = {name: rewards_of(summary) for name, summary in summaries.items()}
    print("\nloss       training: first 3 -> last 3   held out: before -> after             learner CPU s")
    for name, summary in summaries.items():
        first, last = (math.fsum(part) / len(part) for part in (curves[name][:3], curves[name][-3:]))
        heldout = f"{with_error(summary.evals[0])} -> {with_error(summary.evals[-1])}"
        print(f"{name:10} {first:.3f} -> {last:.3f}{'':15} {heldout:37} {summary.cpu_seconds['learner']:13.1f}")
    draw_side_by_side(curves, Path("rewards.png"))
    print("rewards of each step: rewards.png")


def main(arguments: Sequence[str]) -> None:
    """Run the losses that the command line names, or all of them, and report."""
    overrides = [item for item in arguments if "=" in item]
    names = [item for item in arguments if "=" not in item] or list(VARIANTS)
    if unknown := set(names) - set(VARIANTS):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; expected some of: {', '.join(VARIANTS)}")
    summaries = {}
    for name in names:
        print(f"\n== {name}")
        summaries[name] = Trainer(CONFIG, overrides=[*VARIANTS[name], *overrides]).train()
    report(summaries)


if __name__ == "__main__":
    main(sys.argv[1:])
