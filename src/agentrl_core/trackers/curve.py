"""The tracker `curve`: draws `reward.png` in a run's directory; also a picture of several runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentrl_core.errors import RunError
from agentrl_core.trackers.jsonl import FILE_NAME, read_events

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from agentrl_core.api.trackers import EvalReport, RunInfo, RunSummary, StepReport

PICTURE_NAME = "reward.png"

_INK, _QUIET, _TRAINING = "#24292f", "#8b949e", "#2f81f7"
_EVALS = ("#d1572a", "#2da44e", "#8250df", "#bf8700")
_MARKERS = ("o", "s", "D", "^")


class CurveTracker:
    """Tracker that draws the training rewards and the evaluations every `every` steps and at the end.

    The picture of a resumed run begins at the run's first step, as far as `metrics.jsonl` has its events.
    """

    def __init__(self, *, run_dir: Path, every: int = 20, window: int = 9) -> None:
        if every < 1 or window < 1:
            raise ValueError(f"CurveTracker: expected every and window of at least 1, got {every} and {window}")
        self.path = Path(run_dir) / PICTURE_NAME
        self.every = every
        """Number of steps between two pictures during the run."""
        self.window = window
        """Number of steps of the centred moving average."""
        self._title = ""
        self._rewards: dict[int, float] = {}
        self._evals: dict[int, Mapping[str, float]] = {}

    def notice(self, message: str) -> None:
        """Do nothing: the picture has no text."""

    def run_started(self, run: RunInfo) -> None:
        """Read the rewards that an earlier process of this run has reported."""
        self._title = run.name
        for event in read_events(self.path.parent / FILE_NAME):
            if event.get("event") == "step_finished":
                self._add_step(event["step"], event["metrics"].get("reward/mean"))
            elif event.get("event") == "evaluated":
                self._add_eval(event["step"], event["rewards"])

    def evaluated(self, report: EvalReport) -> None:
        """Keep the evaluation's rewards."""
        self._add_eval(report.step, report.rewards)

    def step_finished(self, report: StepReport) -> None:
        """Keep the step's reward; draw a picture every `every` steps."""
        self._add_step(report.step, report.metrics.get("reward/mean"))
        if report.step % self.every == 0:
            self._draw()

    def run_finished(self, summary: RunSummary) -> None:  # noqa: ARG002 - the picture needs no more than the steps
        """Draw the whole run."""
        self._draw()

    def close(self) -> None:
        """Do nothing: no file is open between two pictures."""

    def _add_step(self, step: int, reward: float | None) -> None:
        self._forget_after(step)
        if reward is not None:
            self._rewards[step] = reward

    def _add_eval(self, step: int, rewards: Mapping[str, float]) -> None:
        self._forget_after(step)
        self._evals[step] = rewards

    def _forget_after(self, step: int) -> None:
        """Drop the values of later steps, which a resumed run repeats."""
        self._rewards = {earlier: value for earlier, value in self._rewards.items() if earlier <= step}
        self._evals = {earlier: value for earlier, value in self._evals.items() if earlier <= step}

    def _draw(self) -> None:
        """Write the picture, unless there are no values yet."""
        if not (self._rewards or self._evals):
            return
        # `Figure` instead of pyplot, which keeps every figure alive and may choose a window system.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        # 900 x 450 pixels.
        figure = Figure(figsize=(9, 4.5), dpi=100, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        self._plot_training(axes)
        self._plot_evals(axes)
        _dress(axes, f"{self._title}: reward" if self._title else "reward")
        axes.legend(frameon=False, loc="best", fontsize=9)
        _write(figure, self.path)

    def _plot_training(self, axes: Axes) -> None:
        steps, rewards = list(self._rewards), list(self._rewards.values())
        axes.plot(steps, rewards, color=_TRAINING, alpha=0.3, linewidth=1, label="training, per step")
        if len(steps) > 1:
            label = f"training, mean of {self.window} steps"
            axes.plot(steps, _moving_average(rewards, self.window), color=_TRAINING, linewidth=2, label=label)

    def _plot_evals(self, axes: Axes) -> None:
        names = sorted({name for rewards in self._evals.values() for name in rewards})
        for number, name in enumerate(names):
            points = sorted((step, rewards[name]) for step, rewards in self._evals.items() if name in rewards)
            # Without `clip_on=False` the border of the axes would cut the markers of the first and last evaluation.
            axes.plot(
                [step for step, _ in points],
                [reward for _, reward in points],
                color=_EVALS[number % len(_EVALS)],
                marker=_MARKERS[number % len(_MARKERS)],
                markersize=6,
                linewidth=1.2,
                linestyle="--",
                label=f"evaluation {name}: {points[0][1]:.2f} → {points[-1][1]:.2f}",
                clip_on=False,
                zorder=3,
            )


def draw_side_by_side(curves: Mapping[str, Sequence[float]], path: Path, *, window: int = 5) -> None:
    """Draw the rewards of several runs into one picture: a panel per run, with the other runs in grey behind it.

    `curves` maps the title of a panel to the mean reward of each step. The lines are centred moving averages of
    `window` steps.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2 * len(curves) + 0.6, 2.5), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(curves), sharex=True, sharey=True, squeeze=False)[0]
    lines = {name: _moving_average(rewards, window) for name, rewards in curves.items()}
    for axes, (name, rewards) in zip(panels, curves.items(), strict=True):
        for line in lines.values():
            axes.plot(range(1, len(line) + 1), line, color=_QUIET, alpha=0.35, linewidth=1)
        steps = range(1, len(rewards) + 1)
        axes.plot(steps, rewards, color=_TRAINING, alpha=0.3, linewidth=1)
        axes.plot(steps, lines[name], color=_TRAINING, linewidth=2)
        _dress(axes, name)
        axes.label_outer()
    _write(figure, path)


def _write(figure: Figure, path: Path) -> None:
    """Write a picture; replace an old one only when the new one is complete."""
    unfinished = path.with_suffix(".tmp")
    try:
        figure.savefig(unfinished, format="png")
        unfinished.replace(path)
    except OSError as error:
        raise RunError(f"{path}: cannot write: {error.strerror}; free space on that disk") from error
    finally:
        # After a failure the unfinished picture is still there.
        unfinished.unlink(missing_ok=True)


def _dress(axes: Axes, title: str) -> None:
    """Add title, labels and a light grid; show all of [0, 1] if the rewards lie in it."""
    from matplotlib.ticker import MaxNLocator

    axes.set_title(title, loc="left", color=_INK, fontweight="bold")
    axes.set_xlabel("optimizer step", color=_INK)
    axes.set_ylabel("mean reward", color=_INK)
    low, high = axes.dataLim.y0, axes.dataLim.y1
    if low >= 0 and high <= 1:
        axes.set_ylim(0, 1.05)
    steps = max(1, axes.dataLim.x1)
    axes.set_xlim(-0.015 * steps, 1.015 * steps)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color=_QUIET, alpha=0.25, linewidth=0.8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_QUIET)
    axes.tick_params(colors=_INK, length=3)


def _moving_average(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each value and its neighbours, `window` values in all, fewer at the ends."""
    before, after = (window - 1) // 2, window // 2
    means = []
    for index in range(len(values)):
        near = values[max(0, index - before) : index + after + 1]
        means.append(sum(near) / len(near))
    return means
