"""The `Store` protocol and its reading half `RunReader`, for authors of stores, and the rows that they exchange.

A store keeps the runs, tasks, records, interactions, groups and steps of an experiment. Sampling and training meet
only here: the sampler adds groups, the learner takes them. A store is append-only. A record changes its state once,
by compare-and-set, and a resumed run marks later steps as voided instead of deleting them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentrl_core.api.claims import Admission, GroupClaim
    from agentrl_core.api.group_queue import OvertakeLimits
    from agentrl_core.api.members import Member
    from agentrl_core.types import Episode, Group, Interaction, Message, Record, Task


IDENTITY = "run:identity"
"""Key of a run's identity among its components."""

ORIGIN = "run:origin"
"""Key, among a run's components, of the checkpoint of another run that it began from (`agentrl runs fork`)."""


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
    `IDENTITY` -> the identity of the run, `ORIGIN` -> run, step and digest of the checkpoint that it began from."""
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


@attrs.frozen(kw_only=True)
class GroupRow:
    """A group as stored, without its records."""

    id: str
    task_id: str
    """Empty while the group is reserved for a task that an online agent brings."""
    index: int
    size: int
    version: int
    is_eval: bool
    task_set: str
    state: Literal["reserved", "open", "ready", "taken", "trained", "dropped", "dead", "aside"]
    """A training group is reserved or open, then ready (usable), dropped (unusable) or dead (it lost too many
    members); a step takes it, and it is trained. A resumed run sets groups of voided versions aside."""
    member_id: str
    """Live member that has the group; empty if none has it."""
    tries: int
    takeovers: int


@attrs.frozen(kw_only=True)
class RunControl:
    """What a run's members are to do: set by the trainer and by commands such as `agentrl runs pause`."""

    admitted_steps: int = -1
    """Number of optimizer steps after which sampling may go on, see `Admission`. -1: sampling has not begun."""
    closed: bool = False
    """Whether no more groups will come (`close_sampling`)."""
    wanted: Literal["run", "pause", "stop"] = "run"
    """`pause`: no new episode and no new step begins. `stop`: every member ends as after SIGTERM."""
    limits: Mapping[str, int | float] = attrs.field(factory=dict)
    """Dotted config path -> value that replaces the config's, such as `rollout.max_concurrent_rollouts`."""
    cancel: Sequence[str] = ()
    """Ids of running records that the members which have them are to end as `cancelled`, in the order of asking."""


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

    async def members(self, run_id: str) -> list[Member]:
        """Return the members of a run, also those that left or were lost, in the order in which they joined."""
        ...

    async def groups(self, run_id: str) -> list[GroupRow]:
        """Return the groups of a run in the order in which they were added."""
        ...

    async def control(self, run_id: str) -> RunControl:
        """Return what people and the trainer want of the run's members."""
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

        In this order: evaluation groups without a member (`add_evaluation`), training groups that lost their member,
        by index; then, as far as `admission` allows and sampling is not closed, positions to sample again that have
        been released, by index, and new positions. Evaluation groups are claimed before sampling begins
        (`RunControl.admitted_steps` is -1) and however many groups are pending. `task_at(index)` names a position's
        task. It is None in a run whose agents bring the tasks: a new group is then reserved, and `begin_group` gives
        it its position. New groups have `size` slots and `version`. A group that lost more than
        `admission.max_takeovers` members becomes `dead` instead, like a dropped group without another try.

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
        self, run_id: str, task_set: str, task_ids: Sequence[str], *, version: int
    ) -> Sequence[str]:
        """Ask for one episode on each task; return the ids of the groups, in the order of `task_ids`."""
        ...

    async def await_groups(self, run_id: str, group_ids: Sequence[str]) -> list[Record | None]:
        """Wait until no group is open any more; return the last record of each, None for one that ended without.

        Returns early, with what there is, once sampling is closed.
        """
        ...

    async def admit(self, run_id: str, steps: int) -> None:
        """Let sampling go on as `Admission` allows after `steps` optimizer steps.

        Positions of groups that ended unusable before this call are released: they may be claimed again.
        """
        ...

    async def replace_groups(self, run_id: str, count: int) -> None:
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

    async def finish_group(self, claim: GroupClaim, *, usable: bool, requeue: int = 0) -> bool:
        """Mark a claimed group, all of whose slots are terminal, as ready if it is usable, else as dropped.

        A position whose group was dropped comes again, after the next `admit`, if it had fewer than `requeue` tries;
        the result says whether it does. Raises `ClaimLostError`, and changes nothing, if the group has another member.
        """
        ...

    async def requeue_group(self, run_id: str, group_id: str) -> bool:
        """Let the position of a dropped or dead training group come again at once, with no tries counted.

        Returns False, and changes nothing, if the group is neither, or if its position waits to come again or has a
        later group that is not set aside. Raises `StoreError` for a group that the run does not have.
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

        The versions that later steps published are void too. A training group that no live step consumed keeps what it
        has if none of its tokens is of a void version: it is ready (or open) again, so a finished but untrained record
        trains after a restart. All other unconsumed groups are set aside: they are never handed out, their members
        lose them, and their positions come again. Running records of groups without a live member become `cancelled`
        and their sessions `closed`. Sampling is open again, and begins with the next `admit`. Nothing is deleted.
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
