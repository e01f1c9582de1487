"""What a store must do: keep runs, tasks, records, interactions, groups and steps, append-only, by run.

The only place where sampling and training meet. Facts are never erased: a record changes state once by
compare-and-set, consumption is voided, not deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.stores.queue import Ahead
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


@attrs.frozen(kw_only=True)
class ResumePoint:
    """Where a run goes on once the state of `step` is restored."""

    step: int
    next_index: int
    """Submission index of the next group: one more than the highest that a live step consumed."""
    last_version: int
    """Highest version ever published, by voided steps too; the next one must exceed it. -1 if none."""
    left: Mapping[int, int] = attrs.field(factory=dict)
    """Submission index below `next_index` that no live step consumed -> how many groups of it had ended unusable."""


@attrs.frozen(kw_only=True)
class Usage:
    """What the LLM calls of one record amount to."""

    calls: int
    prompt_tokens: int
    """New ones only: what a call shares with its parent is counted once."""
    output_tokens: int


@attrs.frozen(kw_only=True)
class SessionRow:
    """A session that outlives the process that opened it; one for each record at most."""

    record_id: str
    run_id: str
    group_id: str
    task_id: str
    """What the agent that opened it says it works on."""
    key_hash: bytes = attrs.field(repr=False)
    """Digest of the session's key; the key itself is nowhere."""
    token_hash: bytes = attrs.field(repr=False)
    seed_key: tuple[int, ...]
    policy: Mapping[str, Any]
    """How its calls are sampled."""
    opened_at: float
    state: Literal["open", "ended", "closed"] = "open"
    """An ended session takes no more calls, but rewards; a closed one nothing."""
    rewards: Mapping[str, float] = attrs.field(factory=dict)
    """Interaction id -> reward, as far as they have come."""


class Store(Protocol):
    """Async, usable from several event loops and threads of one process.

    Raises `StoreError` with the path and what to do when a write is refused (full disk, lost file);
    `UnstorableError`, a kind of it, where one value cannot be written and the store goes on with others.
    """

    async def create_run(self, run: RunRow) -> None:
        """Add a run; `StoreError` if its name exists."""
        ...

    async def update_run(self, run_id: str, *, status: str, error: str = "") -> None:
        """Set the run's status."""
        ...

    async def runs(self) -> list[RunRow]:
        """Return all runs, oldest first."""
        ...

    async def add_tasks(self, run_id: str, tasks: Sequence[Task], *, task_set: str = "train") -> None:
        """Keep the task rows of one of a run's task sets; a task already there is left as it is.

        Ids are unique within a set only: a training task and one of an evaluation may have the same.
        """
        ...

    async def tasks(self, run_id: str, *, task_set: str | None = None) -> list[Task]:
        """Return the task rows of a run, or of one of its task sets, in the order in which they were added."""
        ...

    async def add_group(
        self, run_id: str, group_id: str, task_id: str, *, index: int, size: int, version: int, is_eval: bool = False
    ) -> None:
        """Announce a group before its first record, by `index`; one whose task comes back has the index of the first.

        Ids are never used twice in a store: a resumed run gives the groups that it samples anew ids of their own.
        """
        ...

    async def add_record(self, record: Record) -> None:
        """Announce a record, outcome `running`."""
        ...

    async def add_interaction(self, run_id: str, interaction: Interaction) -> None:
        """Append a finished LLM call of an announced record; durable against a killed process when this returns."""
        ...

    async def add_session(self, session: SessionRow) -> None:
        """Keep a session of an announced record."""
        ...

    async def update_session(
        self, record_id: str, *, state: Literal["open", "ended", "closed"], rewards: Mapping[str, float]
    ) -> None:
        """Write where a record's session stands; durable against a killed process when this returns."""
        ...

    async def sessions(self, run_id: str) -> list[SessionRow]:
        """Return the sessions of a run in the order in which they were opened."""
        ...

    async def finish_record(self, record: Record) -> bool:
        """Move a running record to its final outcome; False (and no change) if it was not running.

        Written: outcome, reason, detail, rewards, scores with their details, and `finished_at`. The other fields stay
        as announced.
        """
        ...

    async def finish_group(self, run_id: str, group_id: str, *, usable: bool) -> None:
        """All slots are terminal: the group is ready to be taken, or dropped; one that is not open stays as it is."""
        ...

    async def take_groups(self, run_id: str, count: int, *, ahead: Ahead | None = None) -> list[Group]:
        """Wait until the next `count` training groups are ready; mark them taken and return them.

        In order of submission, by version and index: an open group holds back those after it, a dropped one does
        not. With `ahead` those that are ready overtake open ones, as `stores.queue.next_groups` says. Each group is
        returned once, whoever asks. Returns fewer only after `close_sampling`.
        """
        ...

    async def close_sampling(self, run_id: str) -> None:
        """No more groups will come: wakes `take_groups`, which waits for open ones no longer."""
        ...

    async def add_step(self, step: StepRow) -> None:
        """Record an optimizer step and its consumption; `StoreError` if a live step has its number.

        `groups` names all that were taken for it, those too that a filter left without a sample.
        """
        ...

    async def void_after(self, run_id: str, step: int) -> int:
        """Void the steps later than `step`, so that the run can go on from there; the number of steps voided.

        Groups that no live step consumed are put aside and never handed out (they are sampled anew), records
        still running become `cancelled`, their sessions `closed`, and sampling is open again. Nothing is deleted.
        """
        ...

    async def resume_point(self, run_id: str, step: int) -> ResumePoint:
        """Return where sampling and versions go on after `step`; counts live steps up to it only."""
        ...

    async def steps(self, run_id: str) -> list[StepRow]:
        """Return the steps in the order in which they were taken, voided ones included."""
        ...

    async def add_version(self, run_id: str, version: int, *, step: int) -> None:
        """Record a weight publication; `StoreError` unless `version` exceeds all earlier ones of the run."""
        ...

    async def last_version(self, run_id: str) -> int:
        """Return the highest version ever published in the run; -1 if none."""
        ...

    async def records(
        self, run_id: str, *, task_id: str | None = None, is_eval: bool | None = None, limit: int | None = None
    ) -> list[Record]:
        """Return the records of a run in the order of their start, the first `limit` of them."""
        ...

    async def episode(self, record_id: str) -> Episode | None:
        """Return a record (by id or unique id prefix) with its interactions; `StoreError` if several ids start so.

        Only here a record has its `score_details`, which may be long.
        """
        ...

    async def usage(self, run_id: str) -> Mapping[str, Usage]:
        """Map record ids to their LLM calls and tokens so far; records without a call are left out."""
        ...

    async def flush(self) -> None:
        """Return once everything that was written so far survives a power cut.

        Called before a checkpoint appears: a store that were behind it would have its groups trained twice.
        """
        ...

    async def close(self) -> None:
        """Flush and release; idempotent."""
        ...
