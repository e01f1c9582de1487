"""The tracker `console`: prints a row per step, warnings and a summary to the terminal, a file or a pipe."""

from __future__ import annotations

import contextlib
import math
import re
import shlex
import textwrap
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from rich.console import Console
from rich.live import Live
from rich.text import Text

from agentrl_core.config.invocation import command_line, is_in_runs, near
from agentrl_core.config.terminal import printable_lines
from agentrl_core.errors import RunError
from agentrl_core.trackers.curve import PICTURE_NAME
from agentrl_core.trackers.progress_line import Pace, bar_line, sentence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rich.console import ConsoleOptions

    from agentrl_core.api.trackers import Activity, EvalReport, RunInfo, RunSummary, StepReport

_NORMAL_95 = 1.96
"""Half width of a 95 % confidence interval of a normal distribution, in standard errors."""
_HEADER_EVERY = 20
"""Number of rows after which the header is printed again, so that it stays in view."""
_HEARTBEAT_S = 30.0
"""Longest time without a line in a file or pipe."""
_COMPARED_STEPS = 3
"""Number of steps at each end of a run whose mean rewards the summary compares."""


@attrs.frozen
class _Column:
    """One column of the table of steps."""

    title: str
    width: int
    rank: int
    """Order of removal on a narrow terminal: the highest rank is removed first."""
    cell: Callable[[StepReport], str]
    meaning: str = ""
    """Explanation of the title, printed once above the table; empty for a clear title."""


def _number(name: str, form: str) -> Callable[[StepReport], str]:
    """Return a function that formats one metric of a step, or `-` if the step did not report it."""
    return lambda step: format(step.metrics[name], form) if name in step.metrics else "-"


def _signal(step: StepReport) -> str:
    """Format the number of groups with different rewards and the number of all groups, as `5/16`."""
    names = ("rollout/groups_with_signal", "rollout/groups")
    return "/".join(f"{step.metrics[name]:.0f}" if name in step.metrics else "-" for name in names)


_STEP = _Column("step", 5, 0, lambda step: str(step.step))
_VERSION = _Column("version", 8, 9, lambda step: str(step.version))
_COLUMNS = (
    _STEP,
    _VERSION,
    _Column("lag", 5, 8, _number("rollout/lag_mean", ".1f")),
    _Column("reward", 7, 1, _number("reward/mean", ".3f")),
    _Column("signal", 8, 2, _signal, "groups with different rewards / all; equal rewards teach nothing"),
    _Column("replies cut", 12, 4, _number("rollout/replies_cut", ".0%"), "at their token limit"),
    _Column("tools/ep", 9, 7, _number("rollout/tool_calls_per_episode", ".2f")),
    _Column("tokens/s", 10, 5, _number("rollout/tokens_per_s", ",.0f")),
    _Column("entropy", 8, 6, _number("loss/entropy", ".3f")),
    _Column("gap", 9, 10, _number("loss/logprob_gap_max", ".1e"), "largest |engine - learner| of a token's logprob"),
    _Column("s/step", 7, 3, _number("time/step_s", ".2f")),
)
_FEW = 4
"""Highest rank of the columns that a terminal shows that has no room for all."""
_SUPERVISED_COLUMNS = (
    _STEP,
    _VERSION,
    _Column("epoch", 7, 3, _number("train/epoch", ".2f")),
    _Column("loss", 9, 1, _number("loss/value", ".4f")),
    _Column("tokens", 8, 7, _number("loss/tokens", ",.0f")),
    _Column("grad norm", 10, 4, _number("loss/grad_norm", ".3f")),
    _Column("lr", 9, 5, _number("loss/lr", ".1e")),
    _Column("merge", 7, 9, _number("batch/merge_ratio", ".2f")),
    _Column("tokens/s", 10, 8, _number("train/tokens_per_s", ",.0f")),
    _Column("s/step", 7, 2, _number("time/step_s", ".2f")),
)
"""Columns of a supervised fine-tuning, which samples nothing."""


def _fitting(columns: tuple[_Column, ...], width: int, *, verbose: bool) -> tuple[_Column, ...]:
    """Return all columns if they fit into `width`, else those that matter most; with `verbose`, as many as fit."""
    if not verbose and sum(column.width for column in columns) > width:
        columns = tuple(column for column in columns if column.rank <= _FEW)
    while len(columns) > 1 and sum(column.width for column in columns) > width:
        last = max(columns, key=lambda column: column.rank)
        columns = tuple(column for column in columns if column is not last)
    return columns


class _Output(Console):
    """Standard output, whose reader may end before the run does (`agentrl run … | head`)."""

    def on_broken_pipe(self) -> None:
        """Print nothing more, and stop the run with a RunError."""
        # rich redirects standard output to nowhere, which is wanted, and then exits without a message, which is not.
        with contextlib.suppress(SystemExit):
            super().on_broken_pipe()
        raise RunError(
            "the run's output has no reader any more: the pipe that it was written to is closed. Fix: write to a file, "
            "or leave `console` out of trackers; continue from the newest checkpoint with "
            f"`{command_line('runs', 'resume')}`"
        )


class ConsoleTracker:
    """Tracker that prints one row per step, on a terminal above a progress line.

    A terminal without room for all columns shows the most important ones, or as many as fit with `verbose`. In a file
    or pipe, the rows have all columns, and a line about the progress follows after 30 s without output.
    """

    def __init__(
        self,
        *,
        run_dir: Path,
        verbose: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run_dir, self._verbose = Path(run_dir), verbose
        self._console, self._clock = console or _Output(), clock
        self._pace = Pace(clock)
        self._look: Callable[[], Activity] | None = None
        self._live: Live | None = None
        self._closed = threading.Event()
        self._printed_at = clock()
        self._rows = 0
        self._shown: tuple[_Column, ...] = ()
        self._rewards: dict[int, float] = {}
        self._components: Mapping[str, str] = {}
        self._warm_starts = False
        self._config_file = ""
        self._supervised = False

    def watch(self, look: Callable[[], Activity]) -> None:
        """Start the progress line, or in a file or pipe the thread that prints progress."""
        self._look = look
        if self._console.is_terminal:
            self._live = Live(_Line(look, self._pace), console=self._console, transient=True, refresh_per_second=2)
            self._live.start()
        else:
            threading.Thread(target=self._keep_talking, name="heartbeat", daemon=True).start()

    def notice(self, message: str) -> None:
        """Print the message, and a warning in red."""
        self._print(message, style="bold red" if message.startswith("WARNING ") else None)

    def run_started(self, run: RunInfo) -> None:
        """Print the run's name and directory."""
        self._components, self._supervised = run.components, run.command == "sft"
        self._warm_starts, self._config_file = bool(run.config.get("warm_start")), run.config_file
        self._print(f"run {run.name} in {near(Path(run.directory))}", style="bold")

    def evaluated(self, report: EvalReport) -> None:
        """Print the mean reward, or the loss, of each set."""
        if report.losses:
            told = ", ".join(f"{name} {loss:.4f}" for name, loss in report.losses.items())
            self._print(f"held-out loss after step {report.step}: {told}", style="cyan")
            return
        sets = [f"{name} {reward:.3f} ({_records(report, name)})" for name, reward in report.rewards.items()]
        self._print(f"evaluation after step {report.step}: {', '.join(sets)}", style="cyan")

    def step_finished(self, report: StepReport) -> None:
        """Print the step's row."""
        self._pace.step_finished(report.metrics.get("time/step_s"))
        if "reward/mean" in report.metrics:
            self._rewards[report.step] = report.metrics["reward/mean"]
        self._print_row(report)

    def run_finished(self, summary: RunSummary) -> None:
        """Print the summary."""
        self.close()
        style = "bold green" if summary.status == "finished" and not summary.nothing_learned else "bold red"
        status = summary.status + (", but nothing was learned" if summary.nothing_learned else "")
        steps = f"{summary.steps} step{'s' if summary.steps != 1 else ''}"
        self._print(f"run {summary.name} {status}: {steps}, {_duration(summary.wall_s)}", style=style)
        for label, value in self._summary_rows(summary):
            for line in self._wrapped(f"  {label:<18} ", value):
                self._print(line)

    def close(self) -> None:
        """Remove the progress line; further calls do nothing."""
        self._closed.set()
        if self._live is not None:
            self._live.stop()

    def beat(self) -> float:
        """Print the progress if nothing was printed for `_HEARTBEAT_S`; return the seconds until the next call."""
        due_s = self._printed_at + _HEARTBEAT_S - self._clock()
        if due_s > 0 or self._look is None:
            return max(due_s, 0.0)
        self._print(sentence(self._look(), self._pace))
        return _HEARTBEAT_S

    def _keep_talking(self) -> None:
        """Print the progress into a file or pipe until the tracker is closed."""
        due_s = self.beat()
        # Of a closed pipe the main thread hears when it prints its next line; an error here would stop nothing.
        with contextlib.suppress(RunError):
            while not self._closed.wait(due_s):
                due_s = self.beat()

    def _print_row(self, report: StepReport) -> None:
        columns: tuple[_Column, ...] = _SUPERVISED_COLUMNS if self._supervised else _COLUMNS
        if self._console.is_terminal:
            columns = _fitting(columns, self._console.width, verbose=self._verbose)
        # The columns change when the user resizes the terminal.
        if self._rows % _HEADER_EVERY == 0 or columns != self._shown:
            self._print("".join(column.title.rjust(column.width) for column in columns), style="bold")
            if not self._rows:
                for column in columns:
                    if column.meaning:
                        self._print(f"  {column.title}: {column.meaning}", style="dim")
        self._rows, self._shown = self._rows + 1, columns
        self._print("".join(column.cell(report).rjust(column.width) for column in columns))

    def _summary_rows(self, summary: RunSummary) -> list[tuple[str, str]]:
        # `summary.error` is left out: it is raised after this, and the caller of the run prints it.
        rows = [(f"reward on {name}", text) for name, text in _before_and_after(summary.evals).items()]
        if text := _first_and_last(self._rewards):
            rows.append(("training reward", text))
        rows += [(f"loss on {name}", text) for name, text in _losses_before_and_after(summary.evals).items()]
        if not self._supervised:
            rows += self._sampling_rows(summary)
        parts = [f"{part} {seconds:.1f}" for part, seconds in summary.cpu_seconds.items()]
        total = sum(summary.cpu_seconds.values())
        rows.append(("CPU seconds", f"{total:.1f} ({', '.join(parts)})" if parts else "-"))
        directory = Path(summary.directory)
        picture = directory / PICTURE_NAME
        # The tracker `curve` may draw its picture after this summary is printed.
        will_exist = "trackers:curve" in self._components and bool(self._rewards or summary.evals)
        if not self._supervised and (picture.exists() or will_exist):
            rows.append(("reward curve", near(picture)))
        # Commands find a run by its name only in the folder `runs`; elsewhere they need its path.
        run = summary.name if is_in_runs(directory) else near(directory)
        config = near(Path(self._config_file).absolute()) if self._config_file else "CONFIG"
        rows += _model_rows(directory / "checkpoints", summary, config, warm_starts=self._warm_starts)
        if not self._supervised:
            rows.append(("episodes", command_line("trace", "list", run)))
        if summary.status != "finished":
            rows.append(("resume it", command_line("runs", "resume", run)))
        return rows

    def _sampling_rows(self, summary: RunSummary) -> list[tuple[str, str]]:
        """Return the rows about the episodes: records, groups, LLM calls and token fidelity."""
        outcomes = sorted(summary.outcomes.items(), key=lambda item: -item[1])
        rows = []
        rows.append(("records", ", ".join(f"{name} {count:,}" for name, count in outcomes) or "none"))
        # If all groups were sampled and used, the number of records says enough.
        if len(summary.groups) > 1:
            rows.append(("groups", ", ".join(f"{name} {count:,}" for name, count in summary.groups.items() if count)))
        # Calls that another model answered are not among them: 0 would look like an agent that called nothing.
        rows.append(("LLM calls", f"{summary.llm_calls:,}" if summary.llm_calls else "none to the policy"))
        if summary.trained_tokens:
            share = f"{summary.exact_tokens:,} of {summary.trained_tokens:,} trained tokens exactly as sampled"
            rows.append(("fidelity", share))
        return rows

    def _wrapped(self, label: str, value: str) -> list[str]:
        """Return a row of the summary as lines that fit the terminal; a file or pipe, and a command, is not wrapped."""
        if not self._console.is_terminal or "\n" in value:
            return [line.rstrip() for line in (label + value).splitlines()]
        return textwrap.wrap(
            label + value,
            self._console.width,
            subsequent_indent=" " * min(len(label), self._console.width // 2),
            break_long_words=False,
            break_on_hyphens=False,
        )

    def _print(self, text: str, *, style: str | None = None) -> None:
        """Print one line without wrapping it, because a program may read it."""
        self._printed_at = self._clock()
        self._console.print(printable_lines(text), style=style, markup=False, highlight=False, soft_wrap=True)


@attrs.frozen
class _Line:
    """Progress line below the rows, computed again whenever the terminal is drawn."""

    look: Callable[[], Activity]
    pace: Pace

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Text]:
        """Yield the progress as one line of the terminal's width."""
        yield Text(bar_line(self.look(), self.pace, options.max_width), no_wrap=True, overflow="crop")


def _first_and_last(rewards: Mapping[int, float]) -> str:
    """Compare the mean reward of the first steps with that of the last steps; empty for fewer than two steps."""
    if len(rewards) < 2:  # noqa: PLR2004
        return ""
    steps = sorted(rewards)
    count = min(_COMPARED_STEPS, len(steps) // 2)
    first, last = (sum(rewards[step] for step in some) / count for some in (steps[:count], steps[-count:]))
    each = f"{count} steps each" if count > 1 else "one step each"
    return f"{first:.3f} at step {steps[0]} -> {last:.3f} at step {steps[-1]} ({each})"


def _model_rows(checkpoints: Path, summary: RunSummary, config: str, *, warm_starts: bool) -> list[tuple[str, str]]:
    """Return the rows about the trained model: its folder, and commands that serve it or train it further.

    `config` is the config's path. `warm_starts` says that the run began with demonstrations. A further training must
    not repeat them, because they would undo the first one.
    """
    if summary.status == "finished" and not summary.steps:
        return []  # the run was only to evaluate
    found = {
        int(match[1]): path for path in checkpoints.glob("step-*") if (match := re.fullmatch(r"step-(\d+)", path.name))
    }
    if not found:
        return [("checkpoints", f"none in {near(checkpoints)}")]
    model = near(found[max(found)])
    if summary.nothing_learned or not max(found):
        why = "no step changed the weights" if max(found) else "no step was finished"
        return [("untrained model", f"{model} ({why})")]
    further = [f"model.path={model}", *(["warm_start=null"] if warm_starts else [])]
    command = [command_line("run", config), *map(shlex.quote, further)]
    return [
        ("trained model", f"{model}, a Hugging Face directory"),
        ("  serve it", shlex.join(["vllm", "serve", model])),
        ("  train it further", "\n" + "\\\n".join(f"    {part} " for part in command).rstrip()),
    ]


def _records(report: EvalReport, name: str) -> str:
    """Format the number of records of a mean, and the number of all records if some failed."""
    failed = report.failed.get(name, 0)
    scored = report.records[name]
    return f"{scored} of {scored + failed} records" if failed else f"{scored} records"


def _before_and_after(evals: tuple[EvalReport, ...]) -> dict[str, str]:
    """Return the first and the last mean reward of each task set, by its name."""
    texts = {}
    for name in dict.fromkeys(name for report in evals for name in report.rewards):
        reports = [report for report in evals if name in report.rewards]
        first, last = reports[0], reports[-1]
        counts = list(dict.fromkeys([_records(first, name), _records(last, name)]))
        if last is first:
            texts[name] = f"{_mean(first, name)} after step {first.step} ({counts[0]})"
        else:
            means = f"{_mean(first, name)} -> {_mean(last, name)}"
            texts[name] = f"{means} (step {first.step} -> {last.step}, {' -> '.join(counts)})"
    return texts


def _losses_before_and_after(evals: tuple[EvalReport, ...]) -> dict[str, str]:
    """Return the first and the last loss of each set of chats, by its name."""
    texts = {}
    for name in dict.fromkeys(name for report in evals for name in report.losses):
        first, last = (found := [report for report in evals if name in report.losses])[0], found[-1]
        texts[name] = f"{first.losses[name]:.4f} after step {first.step}"
        if last is not first:
            texts[name] += f" -> {last.losses[name]:.4f} after step {last.step}"
    return texts


def _mean(report: EvalReport, name: str) -> str:
    """Format a mean reward with the half width of its 95 % confidence interval."""
    error = report.errors.get(name, math.nan)
    half = f" ± {_NORMAL_95 * error:.3f}" if math.isfinite(error) else ""
    return f"{report.rewards[name]:.3f}{half}"


def _duration(seconds: float) -> str:
    """Format a duration as `2 h 1 min`, `3 min 4 s` or `5 s`, rounded up."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
