"""Optimizer steps behind policy versions, as the rows of a store tell them."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

import attrs

from agentrl_core.batching.credit import is_trained

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentrl_core.api.stores import StepRow
    from agentrl_core.batching.signal import Signal
    from agentrl_core.types import Episode, Group, Interaction


class TokenAges:
    """Ages of sampled tokens in optimizer steps, for a run that trains; `rows` are its steps so far.

    A version that no row names is one that a resumed run made of its checkpoint, so it is as old as the version before.
    """

    def __init__(self, rows: Iterable[StepRow] = ()) -> None:
        known = {0: 0} | {row.version: row.step for row in rows if not row.voided}
        self._versions, self._steps = sorted(known), sorted(known.values())

    def publish(self, version: int, step: int) -> None:
        """Take note of the version that is sampled from now on, with the weights after `step`."""
        self._versions.append(version)
        self._steps.append(step)

    def aligned(self, group: Group) -> Group:
        """Return a group for training, whose tokens have the versions that they would have without a resumption.

        Training counts a token's lag in versions. A group that was sampled before the run was resumed has tokens of
        versions that the resumption skipped over, and would lag although its weights are those of today.
        """
        last, steps_done = self._versions[-1], self._steps[-1]
        versions = {v for episode in group.episodes for call in episode.interactions for v, _ in call.versions}
        moved = {version: last - (steps_done - self._step_of(version)) for version in versions}
        if all(version == to for version, to in moved.items()):
            return group
        return attrs.evolve(group, episodes=tuple(_renumbered(episode, moved) for episode in group.episodes))

    def oldest(self, group: Group, steps_done: int) -> int:
        """Return the age of a group's oldest trained token after `steps_done` steps; 0 if no token is trained.

        The group is as it was sampled: the versions of an aligned one tell ages only by their distance to the last one.
        """
        calls = (call for episode in group.episodes for call in episode.interactions)
        return max((steps_done - self._step_of(version) for version in _trained_versions(calls)), default=0)

    def of_trained(self, signal: Signal) -> dict[str, float]:
        """Return the metrics of the oldest and the newest trained token of aligned groups; none without any."""
        calls = (call for group in signal.groups for episode in group.episodes for call in episode.interactions)
        versions = _trained_versions(call for call in calls if call.id in signal.advantages)
        if not versions:
            return {}
        last = self._versions[-1]
        return {
            "rollout/token_age_max": float(last - min(versions)),
            "rollout/token_age_min": float(last - max(versions)),
        }

    def _step_of(self, version: int) -> int:
        return self._steps[bisect.bisect(self._versions, version) - 1]


def _trained_versions(calls: Iterable[Interaction]) -> set[int]:
    return {version for call in calls if is_trained(call) for version, _ in call.versions}


def _renumbered(episode: Episode, moved: Mapping[int, int]) -> Episode:
    """Return an episode with other version numbers; neighbours that become one version are joined."""
    calls = []
    for call in episode.interactions:
        versions: list[tuple[int, int]] = []
        for version, count in call.versions:
            to = moved[version]
            if versions and versions[-1][0] == to:
                versions[-1] = (to, versions[-1][1] + count)
            else:
                versions.append((to, count))
        calls.append(attrs.evolve(call, versions=tuple(versions)))
    return attrs.evolve(episode, interactions=tuple(calls))


def step_of_version(version: int, steps: Sequence[StepRow]) -> int | None:
    """Return the step that a version's weights come from: 0 before the first one, None if the rows do not tell.

    A resumed run publishes the weights of its checkpoint again, as a version that no step has. The next version is
    then that of the first step after the checkpoint, which names the step before.
    """
    if version == 0:
        return 0
    published = {row.version: row.step for row in steps}
    following = published.get(version + 1)
    return published.get(version, None if following is None else following - 1)
