"""Filters: which groups are worth an optimizer step, and which of their records."""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import attrs
from attrs import field, validators

from agentrl_core.batching.credit import is_trained
from agentrl_core.errors import PluginError
from agentrl_core.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from agentrl_core.types import Episode, Group, Record


class Filter(Protocol):
    """Decides about one group; what it drops is counted under `reason`."""

    @property
    def reason(self) -> str:
        """Short stable word for the metric `rollout/groups_dropped/<reason>`."""
        ...

    def keep(self, group: Group, advantages: Mapping[str, float]) -> bool | Collection[str]:
        """Whether to train `group`, or the ids of its records to train; the others still count for the baseline.

        `advantages`: interaction id -> advantage, of the trained interactions. What this raises stops the run.
        """
        ...


@attrs.frozen(kw_only=True)
class ZeroVariance:
    """Drops a group without a signal: every advantage is 0, because all its records did equally well.

    DAPO's (arXiv 2503.14476); `rollout.dynamic_sampling` samples others in its place. Looks at the advantages of
    single interactions, so rewards per turn that differ inside a record count as a signal.
    """

    tolerance: float = field(default=1e-6, validator=validators.ge(0.0))
    """Largest absolute advantage that counts as 0."""
    min_range: float = field(default=0.0, validator=validators.ge(0.0))
    """A group is dropped, too, where its best and its worst record are less than this apart; AgentRL's is 0.1."""

    @property
    def reason(self) -> str:
        """Short stable word for counting."""
        return "zero_variance"

    def keep(self, group: Group, advantages: Mapping[str, float]) -> bool:
        """Whether any interaction has an advantage, and the records' rewards differ by enough."""
        rewards = [reward for episode in group.episodes if (reward := episode.record.reward) is not None]
        if self.min_range and max(rewards, default=0.0) - min(rewards, default=0.0) < self.min_range:
            return False
        return has_signal(advantages, tolerance=self.tolerance)


@attrs.frozen(kw_only=True)
class BalanceSample:
    """Trains about as many wrong records as right ones: AgentRL's `balance_sample`.

    Of w wrong and r right records, min(w, r) + 1 wrong and min(w, r) + 2 right ones are drawn. The draw follows from
    `seed`, the task and the group's place in the run, so equal runs train equal records.
    """

    right_above: float = 0.0
    """A record with a higher reward is right."""
    seed: int = 0

    @property
    def reason(self) -> str:
        """Short stable word for counting."""
        return "balance_sample"

    def keep(self, group: Group, advantages: Mapping[str, float]) -> set[str]:  # noqa: ARG002  # the filter protocol
        """Ids of the records that were drawn."""
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
    """Leaves out records that were cut: the policy ran into max_tokens or the end of its context in some call.

    DAPO's overlong filtering (arXiv 2503.14476, Section 3.4): whether a cut response would have been right is not
    known. `reserve` of them are trained all the same: AgentRL's `reserve_context_error_count`. The draw is made as
    `balance_sample` makes it.
    """

    reserve: int = field(default=0, validator=validators.ge(0))
    seed: int = 0

    @property
    def reason(self) -> str:
        """Short stable word for counting."""
        return "overlong"

    def keep(self, group: Group, advantages: Mapping[str, float]) -> set[str]:  # noqa: ARG002  # the filter protocol
        """Ids of the records that ended by themselves, and of those that were drawn."""
        cut = [episode.record.id for episode in group.episodes if _was_cut(episode)]
        drawn = _draw(self.seed, group).sample(cut, min(self.reserve, len(cut)))
        return {episode.record.id for episode in group.episodes}.difference(cut).union(drawn)


@attrs.frozen(kw_only=True)
class MinTurns:
    """Leaves out right records of at most `turns` LLM calls: what was solved at once teaches nothing of acting.

    AgentRL's `min_turns`.
    """

    turns: int = field(default=1, validator=validators.ge(0))
    right_above: float = 0.0
    """A record with a higher reward is right."""

    @property
    def reason(self) -> str:
        """Short stable word for counting."""
        return "min_turns"

    def keep(self, group: Group, advantages: Mapping[str, float]) -> set[str]:  # noqa: ARG002  # the filter protocol
        """Ids of the wrong records, and of the right ones with more calls."""
        return {
            episode.record.id
            for episode in group.episodes
            if (episode.record.reward or 0.0) <= self.right_above
            or sum(call.trainable for call in episode.interactions) > self.turns
        }


@attrs.frozen(kw_only=True)
class FunctionFilter:
    """A plain function as a filter: `fn(group)` or `fn(group, advantages)`, which returns what `Filter.keep` does."""

    reason: str
    function: Callable[..., Any]
    takes_advantages: bool

    def keep(self, group: Group, advantages: Mapping[str, float]) -> Any:
        """Ask the function."""
        return self.function(group, advantages) if self.takes_advantages else self.function(group)


def as_filter(built: object, name: str, *, where: str = "filters") -> Any:
    """Return `built`, or a filter that asks it where it is a function; `name` is what the config calls it.

    Raises `PluginError` for a function that takes something else, or that is async.
    """
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
    return random.Random(f"{seed}:{group.task_id}:{group.index}")  # noqa: S311 - a draw, not a secret


def _was_cut(episode: Episode) -> bool:
    return any(is_trained(call) and call.finish_reason is FinishReason.LENGTH for call in episode.interactions)


def has_signal(advantages: Mapping[str, float], *, tolerance: float = 1e-6) -> bool:
    """Whether any advantage differs from 0 by more than rounding."""
    return any(abs(value) > tolerance for value in advantages.values())
