"""Rows that a store exchanges with its callers: runs, steps, groups, sessions, seals, and where it resumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs

if TYPE_CHECKING:
    from agentrl_core.types import Record

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
class VersionRow:
    """One publication of weights."""

    version: int
    step: int
    """Number of optimizer steps behind the weights."""
    published_at: float
    voided: bool = False
    """True if a resumed run went on from an earlier step."""


@attrs.frozen(kw_only=True)
class SealRow:
    """One link of a run's audit chain as stored, see `agentrl_core.api.audit.Seal`."""

    run_id: str
    number: int
    """0-based place in the chain."""
    body: str
    """Text that the digest is of; the store does not look into it."""
    digest: str


@attrs.frozen(kw_only=True)
class EndedRecord:
    """A record that has ended, with the little else that its seal needs."""

    record: Record
    """With its `score_details`."""
    group: GroupRow
    calls: Sequence[str]
    """`Interaction.digest` of each LLM call, by `seq`."""
    tool_calls: Sequence[str] = ()
    """`ToolCall.digest` of each tool call, by `seq`."""

    @property
    def num_calls(self) -> int:
        """Number of LLM calls and tool calls, see `Store.add_seal`."""
        return len(self.calls) + len(self.tool_calls)


@attrs.frozen(kw_only=True)
class RunControl:
    """Instructions to the members of a run, from the trainer and from commands such as `agentrl runs pause`."""

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
