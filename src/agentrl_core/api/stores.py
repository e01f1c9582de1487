"""The `Store` protocol and its reading half `RunReader`, for authors of stores; their rows are in `run_rows`.

A store keeps the runs, tasks, records, interactions, groups and steps of an experiment. Sampling and training meet
only here: the sampler adds groups, the learner takes them. A store is append-only. A record changes its state once,
by compare-and-set, and a resumed run marks later steps as voided instead of deleting them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

from agentrl_core.api.run_rows import (
    IDENTITY,
    ORIGIN,
    EndedRecord,
    GroupRow,
    RecordUsage,
    ResumePoint,
    RunControl,
    RunRow,
    SealRow,
    SessionRow,
    StepRow,
    VersionRow,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentrl_core.api.claims import Admission, GroupClaim
    from agentrl_core.api.group_queue import OvertakeLimits
    from agentrl_core.api.members import Member
    from agentrl_core.types import Episode, Group, Interaction, Message, Record, Task, ToolCall

__all__ = [
    "IDENTITY",
    "ORIGIN",
    "EndedRecord",
    "GroupRow",
    "RecordUsage",
    "ResumePoint",
    "RunControl",
    "RunReader",
    "RunRow",
    "SealRow",
    "SessionRow",
    "StepRow",
    "Store",
    "VersionRow",
]


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

    async def tasks(self, run_id: str, *, task_set: str | None = None, ids: Sequence[str] | None = None) -> list[Task]:
        """Return the task rows of a run, or of one of its task sets, in the order in which they were added.

        `ids`, if given, are those of the tasks to return.
        """
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
        """Return a record, by id or unique id prefix, with its interactions and tool calls; None if there is none.

        Raises `StoreError` if several ids have the prefix. Only this method fills `score_details`, which may be long.
        """
        ...

    async def episodes(self, record_ids: Sequence[str]) -> list[Episode]:
        """Return what `episode` returns for each of these ids, in their order; ids of no record are left out.

        It makes as few round trips as it can, and keeps all that it returns in memory.
        """
        ...

    async def usage(self, run_id: str) -> Mapping[str, RecordUsage]:
        """Return the LLM calls and tokens so far by record id, for records that have a call."""
        ...

    async def last_outputs(self, run_id: str) -> Mapping[str, Message]:
        """Return the message sampled by each record's last LLM call by record id, for records that have a call."""
        ...

    async def members(self, run_id: str, *, live: bool = False) -> list[Member]:
        """Return the members of a run in the order in which they joined.

        With `live`, returns only the live ones, at a cost that does not grow with the number of former members.
        """
        ...

    async def groups(self, run_id: str) -> list[GroupRow]:
        """Return the groups of a run in the order in which they were added."""
        ...

    async def control(self, run_id: str) -> RunControl:
        """Return what people and the trainer want of the run's members."""
        ...

    async def versions(self, run_id: str, *, after: int = -1) -> list[VersionRow]:
        """Return the publications of versions above `after`, by version."""
        ...

    async def seals(self, run_id: str, *, newest: int | None = None) -> list[SealRow]:
        """Return the links of the run's audit chain by number, or only the `newest` ones."""
        ...

    async def num_sealed(self, run_id: str) -> int:
        """Return the number of records that `add_seal` has marked; fewer in the links show that links were removed."""
        ...

    async def close(self) -> None:
        """Release the database; closing again does nothing, other calls raise `StoreError`."""
        ...


class Store(RunReader, Protocol):
    """Database of a run; its methods can be awaited on several event loops and threads of one process.

    A store's class is built from the options of the config's section `store`, and from `path` and `run` if its
    constructor has them: a file in the run's folder that the store may use, and the run's name. Its attribute `read`,
    a class method or a class, takes the same arguments and returns a `RunReader` that changes nothing.

    The writes of a trainer take its `member_id`. With it they raise `MemberError`, and change nothing, unless this
    member is live: a trainer that was suspended for longer than its lease may have a successor, which goes on from an
    earlier step with the same groups. The store decides that together with the write, so that no successor joins
    between the two. Without `member_id`, any process may write: that of a run without members.

    If options name environment variables with secrets, a static method `secret_variables` of the class returns the
    variables' names for a mapping of options. Processes for agents, scorers and rewards do not get those variables.

    A refused write (full disk, lost file) raises `StoreError`, which names the path and the fix. A value that cannot
    be stored raises its subclass `UnstorableError`; the store stays usable for other values.
    """

    async def create_run(self, run: RunRow) -> None:
        """Add a run; raise `StoreError` if its name exists."""
        ...

    async def update_run(self, run_id: str, *, status: str, error: str = "", member_id: str = "") -> None:
        """Set the run's status."""
        ...

    async def add_tasks(self, run_id: str, tasks: Sequence[Task], *, task_set: str = "train") -> None:
        """Keep the tasks of one of a run's task sets; leave a task that is already there unchanged.

        Ids are unique only within a set: a training task and an evaluation task may have the same id.
        """
        ...

    async def join(self, member: Member) -> None:
        """Add a live member of a run. Raises `MemberError`, with the other's name, for a second live trainer."""
        ...

    async def beat(self, member_id: str, report: Mapping[str, Any]) -> bool:
        """Count a heartbeat and replace the member's report; return False, and change nothing, if it is not live."""
        ...

    async def leave(self, member_id: str) -> None:
        """End a live member in an orderly way: its claims are free, and its running records end as `cancelled`."""
        ...

    async def declare_lost(self, member_id: str, *, beats: int) -> bool:
        """End a live member whose heartbeats still are `beats` as `leave` does; return whether this call ended it.

        By compare-and-set, so a member that has beaten in between stays, and only one caller ends it. Its records end
        `cancelled` for the reason `lost`.
        """
        ...

    async def claim_groups(
        self,
        run_id: str,
        member_id: str,
        count: int,
        *,
        admission: Admission,
        size: int,
        version: int,
        task_at: Callable[[int], str] | None,
    ) -> list[GroupClaim]:
        """Claim up to `count` groups for a live member, and return them; never waits.

        In this order: evaluation groups without a member (`add_evaluation`), in the order in which they were added;
        training groups that lost their member, by index; then, as far as `admission` allows, positions to sample again
        that have been released, by index, and new positions. Before sampling begins (`RunControl.admitted_steps` is -1)
        and after it is closed, only evaluation groups are claimed. A position with more than `admission.requeue` tries
        is not claimed, unless a person asked for it (`requeue_group`) or its last group was set aside.

        `task_at(index)` names a position's task. It is None in a run whose agents bring the tasks: a new group is then
        reserved, and `begin_group` gives it its position. New groups have `size` slots and `version`. A group that lost
        more than `admission.max_takeovers` members becomes `dead` instead, like a dropped group without another try.

        Raises `ClaimLostError` if the member is not live.
        """
        ...

    async def begin_group(self, claim: GroupClaim, task_id: str) -> GroupClaim:
        """Give a reserved group its task and the next position, and return the claim with both."""
        ...

    async def release_group(self, claim: GroupClaim) -> None:
        """Give up a claim without an end of the group, whose running records have ended; the next member gets it.

        A reserved group disappears. Takeovers do not count. Does nothing if the claim is lost.
        """
        ...

    async def add_evaluation(
        self,
        run_id: str,
        task_set: str,
        task_ids: Sequence[str],
        *,
        version: int,
        claimable: bool = True,
        member_id: str = "",
    ) -> Sequence[str]:
        """Ask for one episode on each task; return the ids of the groups, in the order of `task_ids`.

        Groups that are not `claimable` are set aside at once, so no member ever gets them. They are for records that
        no scheduler starts, such as those of sessions outside training.
        """
        ...

    async def await_groups(self, run_id: str, group_ids: Sequence[str]) -> list[Record | None]:
        """Wait until no group is open any more; return the last record of each, None for one without records.

        Returns early, with what there is, once sampling is closed.
        """
        ...

    async def admit(self, run_id: str, steps: int, *, member_id: str = "") -> None:
        """Let sampling go on as `Admission` allows after `steps` optimizer steps.

        Positions of groups that ended unusable before this call are released: they may be claimed again.
        """
        ...

    async def replace_groups(self, run_id: str, count: int, *, member_id: str = "") -> None:
        """Admit `count` more groups for the next step, in place of groups that were taken and then filtered out."""
        ...

    async def set_control(
        self,
        run_id: str,
        *,
        wanted: Literal["run", "pause", "stop"] | None = None,
        limits: Mapping[str, int | float | None] | None = None,
        cancel: Mapping[str, bool] | None = None,
    ) -> RunControl:
        """Change what the run's members are to do; None leaves a value as it is, or removes one limit.

        `cancel` adds record ids to `RunControl.cancel` (True) or removes them (False).
        """
        ...

    async def changed(self, run_id: str, seen: int, *, timeout_s: float) -> int:
        """Wait until a claim, a group or the run's control may have changed since `seen`, and return a new `seen`.

        0 returns at once. Changes by this process return at once; those of other processes are noticed within
        `timeout_s`, after which the call returns anyway.
        """
        ...

    async def add_record(self, record: Record, *, member_id: str = "") -> None:
        """Announce a record with the outcome `running`.

        With `member_id`, raises `ClaimLostError` unless this member is live and has the record's group.
        """
        ...

    async def add_interaction(self, run_id: str, interaction: Interaction) -> None:
        """Append a finished LLM call of an announced record; once this returns, it survives a killed process."""
        ...

    async def add_tool_call(self, run_id: str, call: ToolCall) -> None:
        """Append an ended tool call of an announced record; once this returns, it survives a killed process."""
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

        Writes the outcome, reason, detail, rewards, scores with their details, marks, and `finished_at`. The other
        fields stay as announced.
        """
        ...

    async def finish_group(self, claim: GroupClaim, *, usable: bool, requeue: int = 0) -> bool:
        """Mark a claimed group, all of whose slots are terminal, as ready if it is usable, else as dropped.

        It then has no member any more. A position whose group was dropped comes again, after the next `admit`, if it
        had fewer than `requeue` tries; the result says whether it does. Raises `ClaimLostError`, and changes nothing,
        unless the member has the group.
        """
        ...

    async def requeue_group(self, run_id: str, group_id: str) -> bool:
        """Let the position of a dropped or dead training group be claimed once more, whatever its tries, from now on.

        The new group has one try more. Returns False, and changes nothing, if the group is neither, if its position
        has a later group that is not set aside, or if this was asked already. Raises `StoreError` for an unknown group.
        """
        ...

    async def take_groups(
        self, run_id: str, count: int, *, ahead: OvertakeLimits | None = None, member_id: str = ""
    ) -> list[Group]:
        """Wait until the next `count` training groups are ready; mark them taken and return them.

        The order is that of submission: by the steps that were done when a group's version was published, which are
        its age too, and then by index. So the groups that a resumed run kept and those that it samples anew come in
        the order of a run that was never resumed. An open group holds back the groups after it; a dropped group does
        not. With `ahead`, ready groups may overtake others by the rule of `api.group_queue.next_groups`, which every
        store calls. Each group is returned to one caller only. Fewer than `count` groups are returned only after
        `close_sampling`.
        """
        ...

    async def close_sampling(self, run_id: str, *, member_id: str = "") -> None:
        """Announce that no more groups will come; `take_groups` wakes up and stops waiting for open groups."""
        ...

    async def add_step(self, step: StepRow, *, member_id: str = "") -> None:
        """Record an optimizer step, and mark its groups as trained; `replace_groups` counts from 0 again.

        `groups` of the step names every group that was taken for it, including groups of which a filter left no
        sample. Raises `StoreError` if a step with its number is not voided, or if one of its groups has been trained
        or set aside meanwhile.
        """
        ...

    async def void_after(self, run_id: str, step: int, *, member_id: str = "") -> int:
        """Void the steps after `step`, so that the run can continue from there; return the number of voided steps.

        The versions that later steps published are void too. A training group that no live step consumed keeps what it
        has if it was claimed with a live version and no scored or running record of it has a token of a void version:
        it is ready (or open) again, so a finished but untrained record trains after a restart. All other unconsumed
        groups are set aside: they are never handed out, their members lose them, and their positions come again, with
        the tries from before. That includes dropped and dead groups that were claimed with a void version, open
        evaluation groups (which have no position), and reserved groups with a void version, which disappear. Running
        records of groups without a live member become `cancelled` and their sessions `closed`. Sampling is open again,
        and begins with the next `admit`. No record is deleted.
        """
        ...

    async def resume_point(self, run_id: str, step: int) -> ResumePoint:
        """Return the position from which sampling and versions continue; only live steps up to `step` count."""
        ...

    async def add_version(self, run_id: str, version: int, *, step: int, member_id: str = "") -> None:
        """Record a weight publication; raise `StoreError` unless `version` exceeds all earlier ones of the run."""
        ...

    async def unsealed(self, run_id: str, *, limit: int, late: bool = False) -> list[EndedRecord]:
        """Return up to `limit` records that have ended and that no seal names.

        With `late`, return records instead that got another LLM call or tool call after the last seal that names them:
        a call may still be under way when its record is cancelled. This counts the calls of all records.
        """
        ...

    async def add_seal(self, seal: SealRow, *, records: Mapping[str, int], member_id: str = "") -> None:
        """Append a link to the run's audit chain, which names `records`: id -> `EndedRecord.num_calls`.

        Raises `StoreError` if the chain has a link of this number.
        """
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
