"""A run on the terminal: a row per step, loud warnings, a summary at the end."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from agentrl_core.errors import RunError
from agentrl_core.invocation import command_line
from agentrl_core.trackers.curve import PICTURE_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentrl_core.trackers.base import EvalReport, RunInfo, RunSummary, StepReport

_NORMAL_95 = 1.96
"""Standard errors to each side of a mean that hold 95 % of a normal distribution."""
_HEADER_EVERY = 20  # rows, so that the columns' names stay in view


@attrs.frozen
class _Column:
    """One number of a step's row."""

    title: str
    width: int
    cell: Callable[[Mapping[str, float]], str]


def _number(name: str, form: str) -> Callable[[Mapping[str, float]], str]:
    """Make a cell of one metric; `-` where the step did not report it."""
    return lambda metrics: format(metrics[name], form) if name in metrics else "-"


def _signal(metrics: Mapping[str, float]) -> str:
    """Write how many groups taught something, of all."""
    names = ("rollout/groups_with_signal", "rollout/groups")
    return "/".join(f"{metrics[name]:.0f}" if name in metrics else "-" for name in names)


_COLUMNS = (
    _Column("lag", 5, _number("rollout/lag_mean", ".1f")),
    _Column("reward", 7, _number("reward/mean", ".3f")),
    _Column("signal", 8, _signal),
    _Column("tools/ep", 9, _number("rollout/tool_calls_per_episode", ".2f")),
    _Column("tokens/s", 10, _number("rollout/tokens_per_s", ",.0f")),
    _Column("entropy", 8, _number("loss/entropy", ".3f")),
    _Column("gap", 9, _number("loss/logprob_gap_max", ".1e")),
    _Column("s/step", 7, _number("time/step_s", ".2f")),
)
_SUPERVISED_COLUMNS = (
    _Column("epoch", 7, _number("train/epoch", ".2f")),
    _Column("loss", 9, _number("loss/value", ".4f")),
    _Column("tokens", 8, _number("loss/tokens", ",.0f")),
    _Column("grad norm", 10, _number("loss/grad_norm", ".3f")),
    _Column("lr", 9, _number("loss/lr", ".1e")),
    _Column("merge", 7, _number("batch/merge_ratio", ".2f")),
    _Column("tokens/s", 10, _number("train/tokens_per_s", ",.0f")),
    _Column("s/step", 7, _number("time/step_s", ".2f")),
)
"""Of a run that samples nothing."""


class _Output(Console):
    """Standard output, whose reader may go before the run does (`agentrl run … | head`)."""

    def on_broken_pipe(self) -> None:
        """Fall silent, and stop the run with a word on stderr: rich would end the process without one."""
        with contextlib.suppress(SystemExit):
            super().on_broken_pipe()
        raise RunError(
            "nobody reads the run's output any more: the pipe that it was printed to is closed. Print to a file, or "
            f"leave `console` out of trackers; go on from the newest checkpoint with `{command_line('runs', 'resume')}`"
        )


class ConsoleTracker:
    """Prints one row per step: plain lines into a file or pipe, above a progress bar on a terminal."""

    def __init__(self, *, run_dir: Path, console: Console | None = None) -> None:
        self.run_dir = Path(run_dir)
        self._console = console or _Output()
        self._progress = _progress_bar(self._console) if self._console.is_terminal else None
        self._bar = self._progress.add_task("training", start=True, total=None) if self._progress else None
        self._rows = 0
        self._components: Mapping[str, str] = {}
        self._supervised = False

    def notice(self, message: str) -> None:
        """Print the message."""
        self._print(message)

    def run_started(self, run: RunInfo) -> None:
        """Say what starts, and where it is kept."""
        self._components, self._supervised = run.components, run.command == "sft"
        self._print(f"run {run.name} in {_near(Path(run.directory))}", style="bold")
        if self._progress is not None and self._bar is not None:
            self._progress.update(self._bar, total=run.config.get("trainer", {}).get("steps"))
            self._progress.start()

    def evaluated(self, report: EvalReport) -> None:
        """Print the mean reward, or loss, of each set."""
        if report.losses:
            told = ", ".join(f"{name} {loss:.4f}" for name, loss in report.losses.items())
            self._print(f"held-out loss after step {report.step}: {told}", style="cyan")
            return
        sets = [f"{name} {reward:.3f} ({_records(report, name)})" for name, reward in report.rewards.items()]
        self._print(f"evaluation after step {report.step}: {', '.join(sets)}", style="cyan")

    def step_finished(self, report: StepReport) -> None:
        """Print the step's row, and a warning where it taught nothing."""
        columns = _SUPERVISED_COLUMNS if self._supervised else _COLUMNS
        if self._rows % _HEADER_EVERY == 0:
            titles = "".join(column.title.rjust(column.width) for column in columns)
            self._print(f"{'step':>5} {'version':>7}{titles}", style="bold")
        self._rows += 1
        cells = "".join(column.cell(report.metrics).rjust(column.width) for column in columns)
        self._print(f"{report.step:>5} {report.version:>7}{cells}")
        if report.metrics.get("rollout/groups_with_signal") == 0:
            self._print(
                f"WARNING step {report.step}: no group had a signal: in each, all records got the same reward. "
                f"Nothing was learned; see `{command_line('trace', 'list')}`.",
                style="bold red",
            )
        if self._progress is not None and self._bar is not None:
            self._progress.update(self._bar, completed=report.step)

    def run_finished(self, summary: RunSummary) -> None:
        """Print the summary."""
        self.close()
        style = "bold green" if summary.status == "finished" else "bold red"
        self._print(
            f"run {summary.name} {summary.status}: {summary.steps} steps, policy version {summary.version}, "
            f"{_duration(summary.wall_s)}",
            style=style,
        )
        for label, value in self._summary_rows(summary):
            self._print(f"  {label:<20} {value}")

    def close(self) -> None:
        """Remove the progress bar; idempotent."""
        if self._progress is not None:
            self._progress.stop()

    def _summary_rows(self, summary: RunSummary) -> list[tuple[str, str]]:
        # Not `summary.error`: it is raised, and whoever called the run prints it, after this.
        rows = [(f"reward on {name}", text) for name, text in _before_and_after(summary.evals).items()]
        rows += [(f"loss on {name}", text) for name, text in _losses_before_and_after(summary.evals).items()]
        if not self._supervised:
            rows += self._sampling_rows(summary)
        parts = [f"{part} {seconds:.1f}" for part, seconds in summary.cpu_seconds.items()]
        total = sum(summary.cpu_seconds.values())
        rows.append(("CPU seconds", f"{' + '.join(parts)} = {total:.1f}" if parts else "-"))
        directory = Path(summary.directory)
        picture = directory / PICTURE_NAME
        if not self._supervised and (picture.exists() or "trackers:curve" in self._components):
            rows.append(("reward curve", _near(picture)))
        rows.append(("checkpoints", _near(directory / "checkpoints")))
        run = summary.name if directory.parent == Path("runs").resolve() else _near(directory)
        if not self._supervised:
            rows.append(("episodes", command_line("trace", "list", run)))
        if summary.status != "finished":
            rows.append(("go on", command_line("runs", "resume", run)))
        return rows

    def _sampling_rows(self, summary: RunSummary) -> list[tuple[str, str]]:
        """What became of the episodes."""
        outcomes = sorted(summary.outcomes.items(), key=lambda item: -item[1])
        rows = []
        rows.append(("records", ", ".join(f"{name} {count:,}" for name, count in outcomes) or "none"))
        if len(summary.groups) > 1:  # more to tell than how many were sampled
            rows.append(("groups", ", ".join(f"{name} {count:,}" for name, count in summary.groups.items() if count)))
        rows.append(("LLM calls", f"{summary.llm_calls:,}"))
        if summary.trained_tokens:
            share = f"{summary.exact_tokens:,} of {summary.trained_tokens:,} trained tokens exactly as sampled"
            rows.append(("fidelity", share))
        return rows

    def _print(self, text: str, *, style: str | None = None) -> None:
        """Print one line, never wrapped: it may be read by a program."""
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _progress_bar(console: Console) -> Progress:
    """Make the bar under the rows; it is gone when the run ends."""
    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps,"),
        TimeElapsedColumn(),
        TextColumn("so far,"),
        TimeRemainingColumn(),
        TextColumn("to go"),
    )
    return Progress(*columns, console=console, transient=True, refresh_per_second=2)


def _records(report: EvalReport, name: str) -> str:
    """Write how many records a mean is over, and how many are missing from it."""
    failed = report.failed.get(name, 0)
    scored = report.records[name]
    return f"{scored} of {scored + failed} records" if failed else f"{scored} records"


def _before_and_after(evals: tuple[EvalReport, ...]) -> dict[str, str]:
    """Name of each task set -> its first and its last reward."""
    texts = {}
    for name in dict.fromkeys(name for report in evals for name in report.rewards):
        reports = [report for report in evals if name in report.rewards]
        first, last = reports[0], reports[-1]
        texts[name] = f"{_mean(first, name)} after step {first.step} ({_records(first, name)})"
        if last is not first:
            texts[name] += f" -> {_mean(last, name)} after step {last.step} ({_records(last, name)})"
    return texts


def _losses_before_and_after(evals: tuple[EvalReport, ...]) -> dict[str, str]:
    """Name of each set of chats -> its first and its last loss."""
    texts = {}
    for name in dict.fromkeys(name for report in evals for name in report.losses):
        first, last = (found := [report for report in evals if name in report.losses])[0], found[-1]
        texts[name] = f"{first.losses[name]:.4f} after step {first.step}"
        if last is not first:
            texts[name] += f" -> {last.losses[name]:.4f} after step {last.step}"
    return texts


def _mean(report: EvalReport, name: str) -> str:
    """Write a mean reward with half of its confidence interval of 95 %."""
    error = report.errors.get(name, math.nan)
    half = f" ± {_NORMAL_95 * error:.3f}" if math.isfinite(error) else ""
    return f"{report.rewards[name]:.3f}{half}"


def _near(path: Path) -> str:
    """Shorten the path where it lies under the working directory."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _duration(seconds: float) -> str:
    """Write hours, minutes and seconds."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
