"""Filters: drop groups, or single records of a group, from an optimizer step.

A filter runs after the group's baseline, so records that it leaves out still count for the baseline.
"""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
from attrs import field, validators

from agentrl_core.batching.credit import is_trained
from agentrl_core.errors import PluginError
from agentrl_core.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.types import Episode, Group, Record


@attrs.frozen(kw_only=True)
class ZeroVariance:
    """Filter that drops groups without a signal: all records got the same reward, so every advantage is 0.

    From DAPO (arXiv 2503.14476); `rollout.dynamic_sampling` samples other groups instead. It looks at the advantages of
    single interactions, so rewards per turn that differ within a record count as a signal.
    """

    tolerance: float = field(default=1e-6, validator=validators.ge(0.0))
    """Largest absolute advantage that counts as 0."""
    min_range: float = field(default=0.0, validator=validators.ge(0.0))
    """Smallest difference between the group's best and worst reward; groups below are dropped too. AgentCPM's AgentRL
    uses 0.1."""

    @property
    def reason(self) -> str:
        """Name of the filter in metrics."""
        return "zero_variance"

    def keep(self, group: Group, advantages: Mapping[str, float]) -> bool:
        """Return whether any advantage differs from 0 and the rewards differ by at least `min_range`."""
        # The rewards as given: shaping changes only what advantages see.
        rewards = [reward for episode in group.episodes if (reward := episode.record.reward) is not None]
        if self.min_range and max(rewards, default=0.0) - min(rewards, default=0.0) < self.min_range:
            return False
        return has_signal(advantages, tolerance=self.tolerance)


@attrs.frozen(kw_only=True)
class BalanceSample:
    """Filter that trains about as many wrong records as right ones (`balance_sample` in AgentCPM's AgentRL).

    Of w wrong and r right records it draws min(w, r) + 1 wrong and min(w, r) + 2 right ones. For example, of 6 wrong
    and 2 right it trains 3 wrong and both right. The draw depends on `seed`, the task and the group's index in the run,
    so equal runs train equal records.
    """

    right_above: float = 0.0
    """Largest reward of a wrong record; records above are right."""
    seed: int = 0

    @property
    def reason(self) -> str:
        """Name of the filter in metrics."""
        return "balance_sample"

    def keep(self, group: Group, advantages: Mapping[str, float]) -> set[str]:  # noqa: ARG002  # the filter protocol
        """Return the ids of the records that were drawn."""
        records = [episode.record for episode in group.episodes]
        wrong = [record for record in records if not self._is_right(record)]
        right = [record for record in records if self._is_right(record)]
        fewer = min(len(wrong), len(right))
        draw = _draw(self.seed, group)
        drawn = draw.sample(wrong, min(fewer + 1, len(wrong))) + draw.sample(right, min(fewer + 2, len(right)))
        return {record.id for record in drawn}

    def _is_right(self, record: Record) -> bool:
        return record.reward is not None and record.reward > self.right_above


@attrs.frozen(kw_only=True)
class Overlong:
    """Filter that leaves out records with a cut reply: a call reached max_tokens or the end of the context.

    DAPO's overlong filtering (arXiv 2503.14476, Section 3.4): a cut reply might have been right, so its reward says
    little. `reserve` of them are trained anyway (`reserve_context_error_count` in AgentCPM's AgentRL), drawn as
    `balance_sample` draws.
    """

    reserve: int = field(default=0, validator=validators.ge(0))
    """Number of cut records per group that are trained anyway."""
    seed: int = 0

    @property
    def reason(self) -> str:
        """Name of the filter in metrics."""
        return "overlong"

    def keep(self, group: Group, advantages: Mapping[str, float]) -> set[str]:  # noqa: ARG002  # the filter protocol
        """Return the ids of the records without a cut reply, and of the cut ones that were drawn."""
        cut = [episode.record.id for episode in group.episodes if _was_cut(episode)]
        drawn = _draw(self.seed, group).sample(cut, min(self.reserve, len(cut)))
        return {episode.record.id for episode in group.episodes}.difference(cut).union(drawn)


@attrs.frozen(kw_only=True)
class MinTurns:
    """Filter that leaves out right records with at most `turns` LLM calls: they show no multi-turn behaviour.

    `min_turns` in AgentCPM's AgentRL.
    """

    turns: int = field(default=1, validator=validators.ge(0))
    """Largest number of LLM calls of a right record that is left out."""
    right_above: float = 0.0
    """Largest reward of a wrong record; records above are right."""

    @property
    def reason(self) -> str:
        """Name of the filter in metrics."""
        return "min_turns"

    def keep(self, group: Group, advantages: Mapping[str, float]) -> set[str]:  # noqa: ARG002  # the filter protocol
        """Return the ids of the wrong records, and of the right ones with more calls."""
        return {
            episode.record.id
            for episode in group.episodes
            if (episode.record.reward or 0.0) <= self.right_above
            or sum(call.trainable for call in episode.interactions) > self.turns
        }


@attrs.frozen(kw_only=True)
class FunctionFilter:
    """Adapter from a plain function to a filter: `fn(group)` or `fn(group, advantages)`, returning as `Filter.keep`."""

    reason: str
    function: Callable[..., Any]
    takes_advantages: bool

    def keep(self, group: Group, advantages: Mapping[str, float]) -> Any:
        """Call the function and return its verdict."""
        return self.function(group, advantages) if self.takes_advantages else self.function(group)


def as_filter(built: object, name: str, *, where: str = "filters") -> Any:
    """Return `built`, wrapped as a filter if it is a plain function; `name` is its name in the config.

    Raises `PluginError` for a function with other parameters, or an async one.
    """
    # A filter object may be callable as well; it is used by its `keep`.
    if not callable(built) or hasattr(built, "keep"):
        return built
    parameters = inspect.signature(built).parameters.values()
    positional = [item for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    needed = sum(item.default is item.empty for item in positional)
    if not positional or needed > 2 or inspect.iscoroutinefunction(built):  # noqa: PLR2004  (group and advantages)
        found = f"{'async ' if inspect.iscoroutinefunction(built) else ''}{name}{inspect.signature(built)}"
        raise PluginError(
            f"{where}: expected a filter keep(group) or keep(group, advantages), with options as keyword-only "
            f"parameters, found {found}"
        )
    return FunctionFilter(reason=re.split(r"[.:/]", name)[-1], function=built, takes_advantages=len(positional) > 1)


def _draw(seed: int, group: Group) -> random.Random:
    # A string seeds by its content, so the draw is the same in every process.
    return random.Random(f"{seed}:{group.task_id}:{group.index}")  # noqa: S311 - a draw, not a secret


def _was_cut(episode: Episode) -> bool:
    return any(is_trained(call) and call.finish_reason is FinishReason.LENGTH for call in episode.interactions)


def has_signal(advantages: Mapping[str, float], *, tolerance: float = 1e-6) -> bool:
    """Return whether any advantage differs from 0 by more than rounding."""
    return any(abs(value) > tolerance for value in advantages.values())
