"""Say why a step had nothing to learn from, or why its rewards are bad, with the number that shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from agentrl_core.config.invocation import command_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MANY_FAILED = 0.95
"""Share of a tool's calls that failed from which on the tool is named."""
_FEW_CALLS = 8
"""Calls of a tool below which the share says nothing."""
_FALL = 0.7
"""Standard deviations of the rewards by which the mean has to fall to be a collapse: from 0.5 to 0.15 for rewards of 0
and 1. Runs that learn well never fall by half of that within three steps."""
_SURE = 3.0
"""The same in standard errors of the difference, for steps of few episodes."""


@attrs.frozen(kw_only=True)
class Giver:
    """Origin of the rewards of training episodes, for messages."""

    scorers: Sequence[str] = ()
    """Names of the scorers of the tasks."""
    workflow: str = "the agent"

    def told(self, *, scored: bool) -> str:
        """Return who gave the rewards: a scorer if `scored`, else the agent itself."""
        if not scored:
            return f"returned by {self.workflow}"
        names = ", ".join(f"'{name}'" for name in self.scorers)
        return f"from the scorer{'s' if len(self.scorers) > 1 else ''} {names}"


def has_no_signal(metrics: Mapping[str, float]) -> bool:
    """Return whether a step had nothing to learn from."""
    return metrics.get("rollout/groups_with_signal", 1.0) <= 0


def changed_weights(metrics: Mapping[str, float]) -> bool:
    """Return whether a step trained: its gradient was not 0."""
    return metrics.get("loss/grad_norm", 0.0) > 0


def why_no_signal(metrics: Mapping[str, float], giver: str) -> str:
    """Return why no group of a step had a signal, with what to do; `giver` says who gave the rewards."""
    mean, groups = metrics.get("reward/mean", 0.0), metrics.get("rollout/groups", 0.0)
    prefix = "rollout/groups_dropped/"
    filters = {name.removeprefix(prefix): count for name, count in metrics.items() if name.startswith(prefix)}
    if metrics.get("reward/std"):
        if filters.keys() <= {"zero_variance"}:
            return (
                f"all answers to each of {groups:.0f} tasks got the same reward (mean {mean:.3g}, {giver}), so nothing "
                "tells good answers from bad ones. Raise rollout.group_size, or mix easier and harder tasks"
            )
        dropped = ", ".join(f"{name} {count:.0f}" for name, count in sorted(filters.items()))
        return f"of {groups:.0f} groups none was left to train (dropped: {dropped}). Look at `filters` in the config"
    alike = f"every reward in {groups:.0f} groups is {mean:g} ({giver}), so nothing tells good answers from bad ones"
    if mean == 1:
        return (
            f"{alike}: the tasks are solved, or the rewards cannot be anything else. Use harder tasks; or check that a "
            "wrong answer gets less"
        )
    look = f"compare reply and reference in `{command_line('trace', 'show', 'RECORD')}`"
    if mean == 0:
        return (
            f"{alike}: no answer is right, or the rewards cannot be anything else. First {look}; if the replies are "
            "wrong indeed, use easier tasks, a better model, or demonstrations (warm_start)"
        )
    return f"{alike}. Give better answers more; {look}"


def failing_tool(tools: Mapping[str, int]) -> tuple[str, float]:
    """Return the name of the tool of which most calls failed, and their share; an empty name if all tools work.

    `tools` counts the calls of a step that reached a server, by `called NAME` and `failed NAME`.
    """
    shares = {
        name.removeprefix("called "): tools.get(f"failed {name.removeprefix('called ')}", 0) / count
        for name, count in tools.items()
        if name.startswith("called ") and count >= _FEW_CALLS
    }
    worst = max(shares, key=lambda name: shares[name], default="")
    return (worst, shares[worst]) if worst and shares[worst] >= _MANY_FAILED else ("", 0.0)


def reward_fell(steps: Sequence[Mapping[str, float]], *, group_size: int) -> int | None:
    """Return how many steps ago the mean reward was higher by far; None if it has not collapsed.

    `steps` are the metrics of the last steps, in order. Only what follows an update that changed the weights counts.
    """
    *before, now = steps
    trained = [step for step in before if changed_weights(step)]
    if not trained or "reward/mean" not in now:
        return None
    best = max(trained, key=lambda step: step["reward/mean"])
    episodes = max(1.0, best["rollout/groups"] * group_size)
    least = best["reward/std"] * max(_FALL, _SURE * (2 / episodes) ** 0.5)
    if not least or best["reward/mean"] - now["reward/mean"] < least:
        return None
    return len(steps) - 1 - next(place for place, step in enumerate(steps) if step is best)
