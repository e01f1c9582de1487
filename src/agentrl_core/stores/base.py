"""What a store must do: keep runs, tasks, records, interactions, groups and steps, append-only, by run.

The only place where sampling and training meet. Facts are never erased: a record changes state once by
compare-and-set, consumption is voided, not deleted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs

from agentrl_core.types import Episode, Group, Interaction, Record, Task


@attrs.frozen(kw_only=True)
class RunRow:
    """One run as stored."""

    id: str
    """The run's name."""
    created_at: float
    status: str
    """running, finished, failed, interrupted."""
    config: Mapping[str, Any]
    components: Mapping[str, str]
    """`kind:name` -> `dist==version module:attr` of every component in use."""
    error: str = ""


@attrs.frozen(kw_only=True)
class StepRow:
    """One optimizer step: what it consumed and what came out."""

    run_id: str
    step: int
    """1-based."""
    version: int
    """Policy version that this step published."""
    groups: Sequence[str]
    records: Sequence[str]
    """Every record that entered the step's batch."""
    metrics: Mapping[str, float]
    voided: bool = False
    """True when a resumed run continued from before this step."""


class Store(Protocol):
    """Async, usable from several event loops and threads of one process.

    Raises `StoreError` with the path and what to do when a write is refused (full disk, lost file).
    """

    async def create_run(self, run: RunRow) -> None:
        """Add a run; `StoreError` if its name exists."""
        ...

    async def update_run(self, run_id: str, *, status: str, error: str = "") -> None:
        """Set the run's status."""
        ...

    async def runs(self) -> list[RunRow]:
        """All runs, oldest first."""
        ...

    async def add_tasks(self, run_id: str, tasks: Sequence[Task]) -> None:
        """Keep the task rows of a run; a task already there is left as it is."""
        ...

    async def add_group(
        self, run_id: str, group_id: str, task_id: str, *, index: int, size: int, version: int, is_eval: bool = False
    ) -> None:
        """Announce a group before its first record."""
        ...

    async def add_record(self, record: Record) -> None:
        """Announce a record, outcome `running`."""
        ...

    async def add_interaction(self, run_id: str, interaction: Interaction) -> None:
        """Append a finished LLM call; durable against a killed process when this returns."""
        ...

    async def finish_record(self, record: Record) -> bool:
        """Move a running record to its final outcome; False (and no change) if it was not running."""
        ...

    async def finish_group(self, run_id: str, group_id: str, *, usable: bool) -> None:
        """All slots are terminal: the group is ready to be taken, or dropped."""
        ...

    async def take_groups(self, run_id: str, count: int) -> list[Group]:
        """Wait until `count` ready groups with the lowest indices are there; mark them taken and return them, by index.

        Returns fewer only after `close_sampling`.
        """
        ...

    async def close_sampling(self, run_id: str) -> None:
        """No more groups will come: wakes `take_groups`."""
        ...

    async def add_step(self, step: StepRow) -> None:
        """Record an optimizer step and its consumption."""
        ...

    async def void_after(self, run_id: str, step: int) -> int:
        """Void steps later than `step`, and put groups that no live step consumed aside; number of voided steps."""
        ...

    async def steps(self, run_id: str) -> list[StepRow]:
        """Steps in the order in which they were taken, voided ones included."""
        ...

    async def add_version(self, run_id: str, version: int, *, step: int) -> None:
        """Record a weight publication; versions only rise within a run."""
        ...

    async def last_version(self, run_id: str) -> int:
        """Highest version ever published in the run; -1 if none."""
        ...

    async def records(
        self, run_id: str, *, task_id: str | None = None, is_eval: bool | None = None, limit: int | None = None
    ) -> list[Record]:
        """Records of a run, in order of their start."""
        ...

    async def episode(self, record_id: str) -> Episode | None:
        """A record (by id or unique id prefix) with its interactions."""
        ...

    async def close(self) -> None:
        """Flush and release; idempotent."""
        ...
