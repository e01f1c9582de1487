"""The `Store` protocol and its reading half `RunReader`, for authors of stores, and the rows that they exchange.

A store keeps the runs, tasks, records, interactions, groups and steps of an experiment. Sampling and training meet
only here: the sampler adds groups, the learner takes them. A store is append-only. A record changes its state once,
by compare-and-set, and a resumed run marks later steps as voided instead of deleting them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.api.group_queue import OvertakeLimits
    from agentrl_core.types import Episode, Group, Interaction, Message, Record, Task


IDENTITY = "run:identity"
"""Key of a run's identity among its components."""


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
    """`kind:name` -> `dist==version module:attr` of the components that are built when the row is written: scorers,
    loss, what turns rewards into advantages, store and trackers. The agent's key is `workflow`. Model builder, engine
    and tool parser are built later and are not in it; `config` names them.
    `IDENTITY` -> the identity of the run."""
    error: str = ""

    @property
    def identity(self) -> str:
        """Random text that the run's folder has too, because runs of several folders may share a store and a name.

        Empty for a run that began before there were identities.
        """
        return self.components.get(IDENTITY, "")


@attrs.frozen(kw_only=True)
class StepRow:
    """One optimizer step: the groups that it took, the records that it trained, and its metrics."""

    run_id: str
    step: int
    """1-based."""
    version: int
    """Policy version that this step published."""
    groups: Sequence[str]
    """Every group that the step took, also those that filters dropped."""
    records: Sequence[str]
    """Every record that entered the step's batch; none of dropped groups."""
    metrics: Mapping[str, float]
    voided: bool = False
    """True when a resumed run continued from before this step."""


@attrs.frozen(kw_only=True)
class ResumePoint:
    """Position from which a run continues after the checkpoint of `step` is restored."""

    step: int
    next_index: int
    """Submission index of the next group: one more than the highest that a live step consumed."""
    last_version: int
    """Highest version ever published, also by voided steps; the next one must exceed it. -1 if none."""
    left: Mapping[int, int] = attrs.field(factory=dict)
    """Tasks to sample again: submission index below `next_index` -> how many of its groups were unusable."""


@attrs.frozen(kw_only=True)
class RecordUsage:
    """Number of LLM calls and tokens of one record."""

    calls: int
    prompt_tokens: int
    """Prompt tokens, each counted once: the prefix that a call shares with its parent is left out."""
    output_tokens: int


@attrs.frozen(kw_only=True)
class SessionRow:
    """A session that survives a restart of the gateway; at most one per record."""

    record_id: str
    run_id: str
    group_id: str
    task_id: str
    """Task id as given by the agent that opened the session."""
    key_hash: bytes = attrs.field(repr=False)
    """Digest of the session's key; the key itself is never stored."""
    token_hash: bytes = attrs.field(repr=False)
    seed_key: tuple[int, ...]
    policy: Mapping[str, Any]
    """Sampling settings of the session's calls."""
    opened_at: float
    state: Literal["open", "ended", "closed"] = "open"
    """An ended session accepts rewards but no more calls; a closed session accepts neither."""
    rewards: Mapping[str, float] = attrs.field(factory=dict)
    """Interaction id -> reward, for the rewards received so far."""


class RunReader(Protocol):
    """Reading half of a store: enough for every command that shows, compares or exports runs.

    Its methods can be awaited on several event loops and threads of one process, also while the run goes on. A
    database that cannot be reached or read raises `StoreError`, which names it without a password, and the fix.
    """

    @property
    def location(self) -> str:
        """Path or address of the database for messages, without a password."""
        ...

    async def runs(self) -> list[RunRow]:
        """Return all runs, oldest first."""
        ...

    async def tasks(self, run_id: str, *, task_set: str | None = None) -> list[Task]:
        """Return the task rows of a run, or of one of its task sets, in the order in which they were added."""
        ...

    async def sessions(self, run_id: str) -> list[SessionRow]:
        """Return the sessions of a run in the order in which they were opened."""
        ...

    async def steps(self, run_id: str) -> list[StepRow]:
        """Return the steps in the order in which they were made, including voided steps."""
        ...

    async def last_version(self, run_id: str) -> int:
        """Return the highest version ever published in the run, -1 if none."""
        ...

    async def records(
        self, run_id: str, *, task_id: str | None = None, is_eval: bool | None = None, limit: int | None = None
    ) -> list[Record]:
        """Return the first `limit` records of a run in the order of their start."""
        ...

    async def episode(self, record_id: str) -> Episode | None:
        """Return a record, by id or unique id prefix, with its interactions; None if there is none.

        Raises `StoreError` if several ids have the prefix. Only this method fills `score_details`, which may be long.
        """
        ...

    async def usage(self, run_id: str) -> Mapping[str, RecordUsage]:
        """Return the LLM calls and tokens so far by record id, for records that have a call."""
        ...

    async def last_outputs(self, run_id: str) -> Mapping[str, Message]:
        """Return the message sampled by each record's last LLM call by record id, for records that have a call."""
        ...

    async def close(self) -> None:
        """Release the database; closing again does nothing, other calls raise `StoreError`."""
        ...


class Store(RunReader, Protocol):
    """Database of a run; its methods can be awaited on several event loops and threads of one process.

    A store's class is built from the options of the config's section `store`, and from `path` and `run` if its
    constructor has them: a file in the run's folder that the store may use, and the run's name. Its attribute `read`,
    a class method or a class, takes the same arguments and returns a `RunReader` that changes nothing.

    If options name environment variables with secrets, a static method `secret_variables` of the class returns the
    variables' names for a mapping of options. Processes for agents, scorers and rewards do not get those variables.

    A refused write (full disk, lost file) raises `StoreError`, which names the path and the fix. A value that cannot
    be stored raises its subclass `UnstorableError`; the store stays usable for other values.
    """

    async def create_run(self, run: RunRow) -> None:
        """Add a run; raise `StoreError` if its name exists."""
        ...

    async def update_run(self, run_id: str, *, status: str, error: str = "") -> None:
        """Set the run's status."""
        ...

    async def add_tasks(self, run_id: str, tasks: Sequence[Task], *, task_set: str = "train") -> None:
        """Keep the tasks of one of a run's task sets; leave a task that is already there unchanged.

        Ids are unique only within a set: a training task and an evaluation task may have the same id.
        """
        ...

    async def add_group(
        self, run_id: str, group_id: str, task_id: str, *, index: int, size: int, version: int, is_eval: bool = False
    ) -> None:
        """Announce a group before its first record.

        `index` is the position of its task in the order of submission. A group that repeats the task of an unusable
        group has the index of that group. Ids are never reused in a store: groups that a resumed run samples again
        get new ids.
        """
        ...

    async def add_record(self, record: Record) -> None:
        """Announce a record with the outcome `running`."""
        ...

    async def add_interaction(self, run_id: str, interaction: Interaction) -> None:
        """Append a finished LLM call of an announced record; once this returns, it survives a killed process."""
        ...

    async def add_session(self, session: SessionRow) -> None:
        """Keep a session of an announced record."""
        ...

    async def update_session(
        self, record_id: str, *, state: Literal["open", "ended", "closed"], rewards: Mapping[str, float]
    ) -> None:
        """Write the state and rewards of a record's session; once this returns, they survive a killed process."""
        ...

    async def finish_record(self, record: Record) -> bool:
        """Move a running record to its final outcome; return False and change nothing if it was not running.

        Writes the outcome, reason, detail, rewards, scores with their details, and `finished_at`. The other fields
        stay as announced.
        """
        ...

    async def finish_group(self, run_id: str, group_id: str, *, usable: bool) -> None:
        """Mark an open group, all of whose slots are terminal, as ready if it is usable, else as dropped.

        A group that is not open stays unchanged.
        """
        ...

    async def take_groups(self, run_id: str, count: int, *, ahead: OvertakeLimits | None = None) -> list[Group]:
        """Wait until the next `count` training groups are ready; mark them taken and return them.

        The order is that of submission, by version and index. An open group holds back the groups after it; a
        dropped group does not. With `ahead`, ready groups may overtake open ones by the rule of
        `api.group_queue.next_groups`. Each group is returned to one caller only. Fewer than `count` groups are returned
        only after `close_sampling`.
        """
        ...

    async def close_sampling(self, run_id: str) -> None:
        """Announce that no more groups will come; `take_groups` wakes up and stops waiting for open groups."""
        ...

    async def add_step(self, step: StepRow) -> None:
        """Record an optimizer step and its consumption; raise `StoreError` if a step with its number is not voided.

        `groups` of the step names every group that was taken for it, including groups of which a filter left no
        sample.
        """
        ...

    async def void_after(self, run_id: str, step: int) -> int:
        """Void the steps after `step`, so that the run can continue from there; return the number of voided steps.

        Groups that no live step consumed are set aside: they are never handed out, and the run samples their tasks
        again. Records that are still running become `cancelled` and their sessions `closed`. Sampling is open again.
        Nothing is deleted.
        """
        ...

    async def resume_point(self, run_id: str, step: int) -> ResumePoint:
        """Return the position from which sampling and versions continue; only live steps up to `step` count."""
        ...

    async def add_version(self, run_id: str, version: int, *, step: int) -> None:
        """Record a weight publication; raise `StoreError` unless `version` exceeds all earlier ones of the run."""
        ...

    async def flush(self) -> None:
        """Return once everything that was written so far survives a power cut.

        Called before a checkpoint is made visible. If the store lost steps that the checkpoint contains, the resumed
        run would train their groups twice.
        """
        ...

    async def close(self) -> None:
        """Flush and release the database; closing again does nothing, other calls raise `StoreError`."""
        ...
