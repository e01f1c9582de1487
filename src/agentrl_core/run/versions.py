"""Optimizer steps behind policy versions, as the rows of a store tell them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_core.api.stores import StepRow


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
