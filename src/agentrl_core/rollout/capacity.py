"""Bound the number of groups that may start: AReaL's staleness formula, with tasks as units."""

from __future__ import annotations

import attrs


@attrs.define(kw_only=True)
class Capacity:
    """Counts groups against policy versions.

    A group that starts now may be consumed after everything that was accepted or is running before it, so its
    lag is bounded by the number of versions that those will make: AReaL admits
    `(max_head_offpolicyness + version + 1) * batch - (accepted + running)` groups. `version` is taken as the
    number of optimizer steps done, because a resumed run's version numbers jump. AReaL's other term, concurrency,
    counts episodes here and is the scheduler's.
    """

    max_head_offpolicyness: int
    """Policy versions that a group may lag behind."""
    tasks_per_step: int
    total_steps: int | None = None
    """Steps of the run: no group is started that only a later step could consume. None: no end."""
    steps_done: int = 0
    accepted: int = 0
    """Usable groups since the start of the run."""
    running: int = 0

    def groups(self) -> int:
        """Return the number of groups that may start now; not positive while sampling is as far ahead as it may be."""
        steps = self.max_head_offpolicyness + self.steps_done + 1
        # Near the end of the run the bound would admit groups that no step will consume.
        if self.total_steps is not None:
            steps = min(steps, self.total_steps)
        return steps * self.tasks_per_step - (self.accepted + self.running)

    def go_on_after(self, steps_done: int) -> None:
        """Continue a run whose every step so far consumed `tasks_per_step` groups."""
        self.steps_done = steps_done
        self.accepted = steps_done * self.tasks_per_step

    def replaced(self, groups: int) -> None:
        """Make room for `groups` groups in place of groups that were taken but that no step will consume."""
        self.accepted -= groups

    def started(self) -> None:
        """Count a group that starts."""
        self.running += 1

    def finished(self, *, usable: bool) -> None:
        """Count a group that ended; an unusable one makes room for another."""
        self.running -= 1
        self.accepted += usable
