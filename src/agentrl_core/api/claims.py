"""Claims of groups: which group a sampling member runs next, and how many groups may be sampled ahead of training.

A group is claimed by one live member at a time. A member that leaves or is lost loses its claims, and the next member
that asks takes its open groups over.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen(kw_only=True)
class Admission:
    """Limits of the groups that a run samples: AReaL's staleness formula, with groups as units.

    A group that starts now may be consumed after everything that was accepted or is running before it, so its lag is
    bounded by the number of versions that those will make: AReaL admits
    `(max_head_offpolicyness + version + 1) * batch - (accepted + running)` groups. Steps are counted instead of
    versions, because a resumed run's version numbers jump. AReaL's other term, concurrency, counts episodes here and
    is the scheduler's.
    """

    max_head_offpolicyness: int
    """Policy versions that a group may lag behind."""
    tasks_per_step: int
    total_steps: int | None = None
    """Steps of the run: no group is admitted that only a later step could consume. None: no end."""
    pipeline_depth: int | None = None
    """Groups that may be in flight beyond those of one step: being sampled, waiting, or being trained. None: as many as
    `max_head_offpolicyness` allows."""
    requeue: int = 0
    """Times that a position comes again after a group of it ended unusable."""
    max_takeovers: int = 3
    """Times that a group may lose its member. After that it is `dead`: an episode that kills its process would
    otherwise kill every sampler in turn."""

    def groups(self, *, admitted_steps: int, trained_steps: int, pending: int, replaced: int) -> int:
        """Return the number of groups that may start now; not positive while sampling is as far ahead as it may be.

        `admitted_steps` is what the trainer has last admitted, `trained_steps` the number of live steps, `pending` the
        number of training groups that are reserved, open, ready or taken, `replaced` the number of taken groups that
        the next step has dropped.
        """
        steps = self.max_head_offpolicyness + admitted_steps + 1
        # Near the end of the run the bound would admit groups that no step will consume.
        if self.total_steps is not None:
            steps = min(steps, self.total_steps)
        in_flight = (steps - trained_steps) * self.tasks_per_step
        if self.pipeline_depth is not None:
            in_flight = min(in_flight, self.tasks_per_step + self.pipeline_depth)
        return in_flight - (pending - replaced)


@attrs.frozen(kw_only=True)
class GroupClaim:
    """A group that a member has to run: a new one, or one that was asked for or abandoned."""

    group_id: str
    member_id: str
    index: int
    """Position of the task in the order of submission, or in its task set for an evaluation. -1 while it is reserved
    for a task that an online agent brings."""
    task_id: str
    """Empty while the group is reserved."""
    size: int
    version: int
    """Policy version when the group was first claimed."""
    tries: int = 0
    """Earlier groups of this position that ended unusable."""
    takeovers: int = 0
    """Members that had this group and were lost or left."""
    is_eval: bool = False
    task_set: str = "train"
    scored: Mapping[int, str] = attrs.field(factory=dict)
    """Slot -> id of its scored record, from earlier members; only the other slots are left to run."""
