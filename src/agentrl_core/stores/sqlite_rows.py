"""Conversion between values and rows of a SQLite store: token ids and logprobs as binary, messages as JSON.

The round trip is exact, except that logprobs are rounded to 32-bit floats.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import orjson

from agentrl_core.api.audit import escaped
from agentrl_core.api.kept_tokens import compress, decompress
from agentrl_core.api.members import Member
from agentrl_core.api.run_rows import GroupRow, RunControl, RunRow, SealRow, SessionRow, StepRow, VersionRow
from agentrl_core.errors import UnstorableError
from agentrl_core.types import FinishReason, Grammar, Interaction, Outcome, Record, Sampling, Task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.api.claims import GroupClaim


@attrs.frozen
class Table:
    """A table's name and the columns that the `…_row` and `…_from` functions use, in their order."""

    name: str
    columns: str

    @property
    def select(self) -> str:
        """`SELECT` statement of the columns, without a condition."""
        return f"SELECT {self.columns} FROM {self.name}"  # noqa: S608 - both are constants of this module

    @property
    def insert(self) -> str:
        """`INSERT` statement of one row."""
        values = ", ".join("?" * (self.columns.count(",") + 1))
        return f"INSERT INTO {self.name} ({self.columns}) VALUES ({values})"  # noqa: S608 - both are constants


RUNS = Table("runs", "id, created_at, status, config, components, error")
TASKS = Table("tasks", "run_id, task_set, id, data, answer, scorer, answer_schema")
GROUPS = Table(
    "groups", "run_id, id, task_id, idx, size, version, is_eval, task_set, state, member_id, tries, takeovers"
)
MEMBERS = Table(
    "members",
    "id, run_id, role, host, pid, joined_at, lease_s, config_digest, packages, url, state, beats, report, process",
)
RECORDS = Table(
    "records",
    "id, run_id, task_id, group_id, sample_index, attempt, is_eval, outcome, reason, detail, "
    "reward, rewards, score, score_parts, started_at, finished_at, task_set, marks",
)
GROUP_OF_RECORD = RECORDS.columns.split(", ").index("group_id")
"""Position of the column `group_id` in a row of `RECORDS`."""
INTERACTIONS = Table(
    "interactions",
    "run_id, id, record_id, seq, parent, prompt_ids, output_ids, logprobs, versions, messages, output, tools, "
    "sampling, requested, finish_reason, model, api, trainable, upstream, cached_tokens, tool_errors, "
    "witness, retry_key, started_at, finished_at, digest, kept",
)
TOOLS = INTERACTIONS.columns.split(", ").index("tools")
"""Position of the column `tools` in a row of `INTERACTIONS`: the key of the row that holds the tools."""
SESSIONS = Table(
    "sessions",
    "record_id, run_id, group_id, task_id, key_hash, token_hash, seed_key, policy, opened_at, state, rewards",
)
STEPS = Table("steps", "run_id, step, version, groups, records, metrics, voided")
VERSIONS = Table("versions", "run_id, version, step, published_at, voided")
SEALS = Table("seals", "run_id, number, body, digest")

Tools: TypeAlias = "tuple[Mapping[str, Any], ...]"

_SAMPLING_DEFAULTS = [(field.name, field.default) for field in attrs.fields(Sampling)]


def to_json(value: object, what: str) -> str:
    """Encode `value` exactly, including NaN and lone surrogates; raise `UnstorableError` naming `what` otherwise."""
    try:
        return json.dumps(value, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise UnstorableError(f"{what} cannot be stored: {error}; expected values that JSON can represent") from error


def to_json_fast(value: object, what: str) -> str:
    """Encode a value that came over HTTP with orjson, in a tenth of the time of `to_json`, which is the fallback.

    Such a value came from JSON, so it holds no NaN, which orjson would turn into null.
    """
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return to_json(value, what)


def from_json(value: str) -> Any:
    """Decode what `to_json_fast` encoded."""
    try:
        return orjson.loads(value)
    # orjson refuses lone surrogates, which the standard library reads and writes.
    except orjson.JSONDecodeError:
        return json.loads(value)


def run_row(run: RunRow) -> tuple[object, ...]:
    """Convert a run to the columns of `RUNS`."""
    what = f"run '{run.id}'"
    config, components = to_json(dict(run.config), what), to_json(dict(run.components), what)
    return (run.id, run.created_at, run.status, config, components, escaped(run.error))


def run_from(row: Sequence[Any]) -> RunRow:
    """Restore a run from its columns."""
    name, created_at, status, config, components, error = row
    return RunRow(
        id=name,
        created_at=created_at,
        status=status,
        config=dict(json.loads(config)),
        components=dict(json.loads(components)),
        error=error,
    )


def task_row(run_id: str, task: Task, task_set: str) -> tuple[object, ...]:
    """Convert a task to the columns of `TASKS`."""
    data = to_json(dict(task.data), f"task '{task.id}'")
    return (run_id, task_set, task.id, data, task.answer, task.scorer, task.answer_schema)


def task_from(row: Sequence[Any]) -> Task:
    """Restore a task from its columns."""
    _, _, name, data, answer, scorer, answer_schema = row
    return Task(id=name, data=json.loads(data), answer=answer, scorer=scorer, answer_schema=answer_schema)


def claim_row(run_id: str, claim: GroupClaim) -> tuple[object, ...]:
    """Convert a claim to the columns of `GROUPS` for a new group; without a position it is reserved."""
    state = "reserved" if claim.index < 0 else "open"
    values = (claim.is_eval, claim.task_set, state, claim.member_id, claim.tries, claim.takeovers)
    return (run_id, claim.group_id, claim.task_id, claim.index, claim.size, claim.version, *values)


def group_from(row: Sequence[Any]) -> GroupRow:
    """Restore a group from its columns."""
    _, name, task_id, index, size, version, is_eval, task_set, state, member_id, tries, takeovers = row
    return GroupRow(
        id=name,
        task_id=task_id,
        index=index,
        size=size,
        version=version,
        is_eval=bool(is_eval),
        task_set=task_set,
        state=state,
        member_id=member_id,
        tries=tries,
        takeovers=takeovers,
    )


def member_row(member: Member) -> tuple[object, ...]:
    """Convert a member to the columns of `MEMBERS`."""
    what = f"member {member.name}"
    return (
        member.id,
        member.run_id,
        member.role,
        escaped(member.host),
        member.pid,
        member.joined_at,
        member.lease_s,
        member.config_digest,
        to_json(dict(member.packages), what),
        member.url,
        member.state,
        member.beats,
        to_json(dict(member.report), what),
        escaped(member.process),
    )


def member_from(row: Sequence[Any]) -> Member:
    """Restore a member from its columns."""
    name, run_id, role, host, pid, joined_at, lease_s, config_digest, packages, url, state, beats, report, process = row
    return Member(
        id=name,
        run_id=run_id,
        role=role,
        host=host,
        pid=pid,
        process=process,
        joined_at=joined_at,
        lease_s=lease_s,
        config_digest=config_digest,
        packages=json.loads(packages),
        url=url,
        state=state,
        beats=beats,
        report=json.loads(report),
    )


def version_from(row: Sequence[Any]) -> VersionRow:
    """Restore a publication from its columns."""
    _, version, step, published_at, voided = row
    return VersionRow(version=version, step=step, published_at=published_at, voided=bool(voided))


def seal_from(row: Sequence[Any]) -> SealRow:
    """Restore a seal from its columns."""
    run_id, number, body, digest = row
    return SealRow(run_id=run_id, number=number, body=body, digest=digest)


CONTROL = "SELECT admitted_steps, sampling_closed, wanted, limits, cancel FROM runs WHERE id = ?"
"""Select the control of a run."""


def control_from(row: Sequence[Any]) -> RunControl:
    """Restore a run's control from the columns `CONTROL`."""
    admitted_steps, closed, wanted, limits, cancel = row
    return RunControl(
        admitted_steps=admitted_steps,
        closed=bool(closed),
        wanted=wanted,
        limits=json.loads(limits),
        cancel=tuple(json.loads(cancel)),
    )


def record_row(record: Record) -> tuple[object, ...]:
    """Convert a record to the columns of `RECORDS`."""
    return (
        record.id,
        record.run_id,
        record.task_id,
        record.group_id,
        record.sample_index,
        record.attempt,
        record.is_eval,
        record.outcome.value,
        escaped(record.reason),
        escaped(record.detail),
        record.reward,
        to_json(dict(record.rewards), f"record {record.id}"),
        record.score,
        to_json(dict(record.score_parts), f"record {record.id}"),
        record.started_at,
        record.finished_at,
        record.task_set,
        to_json(record.marks, f"record {record.id}") if record.marks else "[]",
    )


def record_from(row: Sequence[Any]) -> Record:
    """Restore a record from its columns."""
    return Record(
        id=row[0],
        run_id=row[1],
        task_id=row[2],
        group_id=row[3],
        sample_index=row[4],
        attempt=row[5],
        is_eval=bool(row[6]),
        outcome=Outcome(row[7]),
        reason=row[8],
        detail=row[9],
        reward=row[10],
        rewards=json.loads(row[11]),
        score=row[12],
        score_parts=json.loads(row[13]),
        started_at=row[14],
        finished_at=row[15],
        task_set=row[16],
        marks=() if row[17] == "[]" else tuple(json.loads(row[17])),
    )


def interaction_row(run_id: str, interaction: Interaction, tools: bytes | None) -> tuple[object, ...]:
    """Convert an interaction to the columns of `INTERACTIONS`; `tools` is the key of the row that holds its tools."""
    what = f"interaction {interaction.id}"
    return (
        run_id,
        interaction.id,
        interaction.record_id,
        interaction.seq,
        interaction.parent,
        _pack("i", interaction.prompt_ids, what),
        _pack("i", interaction.output_ids, what),
        _pack("f", interaction.logprobs, what),
        to_json_fast(interaction.versions, what),
        to_json_fast(interaction.messages, what),
        to_json_fast(interaction.output, what),
        tools,
        to_json_fast(_sampling_to(interaction.sampling), what),
        to_json_fast(dict(interaction.requested), what),
        interaction.finish_reason.value,
        interaction.model,
        interaction.api,
        interaction.trainable,
        interaction.upstream,
        interaction.cached_tokens,
        interaction.tool_errors,
        interaction.witness,
        interaction.retry_key,
        interaction.started_at,
        interaction.finished_at,
        interaction.digest,
        compress(interaction.kept),
    )


def interaction_from(row: Sequence[Any], tools: Mapping[bytes | None, Tools]) -> Interaction:
    """Restore an interaction from its columns; `tools` maps the keys of tool rows to their values."""
    return Interaction(
        id=row[1],
        record_id=row[2],
        seq=row[3],
        parent=row[4],
        prompt_ids=_unpack("i", row[5]),
        output_ids=_unpack("i", row[6]),
        logprobs=_unpack("f", row[7]),
        versions=tuple((version, count) for version, count in orjson.loads(row[8])),
        messages=tuple(from_json(row[9])),
        output=from_json(row[10]),
        tools=tools[row[TOOLS]],
        sampling=_sampling_from(row[12]),
        requested=from_json(row[13]),
        finish_reason=FinishReason(row[14]),
        model=row[15],
        api=row[16],
        trainable=bool(row[17]),
        upstream=row[18],
        cached_tokens=row[19],
        tool_errors=row[20],
        witness=row[21],
        retry_key=row[22],
        started_at=row[23],
        finished_at=row[24],
        digest=row[25],
        kept=decompress(row[26]),
    )


def session_row(session: SessionRow) -> tuple[object, ...]:
    """Convert a session to the columns of `SESSIONS`."""
    what = f"the session of record {session.record_id}"
    return (
        session.record_id,
        session.run_id,
        session.group_id,
        escaped(session.task_id),
        session.key_hash,
        session.token_hash,
        to_json(list(session.seed_key), what),
        to_json(dict(session.policy), what),
        session.opened_at,
        session.state,
        to_json(dict(session.rewards), what),
    )


def session_from(row: Sequence[Any]) -> SessionRow:
    """Restore a session from its columns."""
    record_id, run_id, group_id, task_id, key_hash, token_hash, seed_key, policy, opened_at, state, rewards = row
    return SessionRow(
        record_id=record_id,
        run_id=run_id,
        group_id=group_id,
        task_id=task_id,
        key_hash=key_hash,
        token_hash=token_hash,
        seed_key=tuple(json.loads(seed_key)),
        policy=json.loads(policy),
        opened_at=opened_at,
        state=state,
        rewards=json.loads(rewards),
    )


def tools_from(value: str) -> Tools:
    """Restore the tools of one tool row."""
    return tuple(from_json(value))


def names_from(value: str) -> list[str]:
    """Read the ids in a `groups` or `records` column of a step."""
    names: list[str] = json.loads(value)
    return names


def step_row(step: StepRow) -> tuple[object, ...]:
    """Convert a step to the columns of `STEPS`."""
    metrics = to_json(dict(step.metrics), f"step {step.step}")
    groups, records = json.dumps(list(step.groups)), json.dumps(list(step.records))
    return (step.run_id, step.step, step.version, groups, records, metrics, step.voided)


def step_from(row: Sequence[Any]) -> StepRow:
    """Restore a step from its columns."""
    run_id, step, version, groups, records, metrics, voided = row
    return StepRow(
        run_id=run_id,
        step=step,
        version=version,
        groups=tuple(json.loads(groups)),
        records=tuple(json.loads(records)),
        metrics=json.loads(metrics),
        voided=bool(voided),
    )


def _sampling_to(sampling: Sampling) -> dict[str, object]:
    """Return the sampling settings that differ from the defaults, to keep rows short."""
    kept = {name: value for name, default in _SAMPLING_DEFAULTS if (value := getattr(sampling, name)) != default}
    return kept if sampling.grammar is None else {**kept, "grammar": attrs.asdict(sampling.grammar)}


def _sampling_from(value: str) -> Sampling:
    kept: dict[str, Any] = {
        name: tuple(item) if isinstance(item, list) else item for name, item in orjson.loads(value).items()
    }
    if "grammar" in kept:
        kept["grammar"] = Grammar(**kept["grammar"])
    return Sampling(**kept)


# struct instead of array: it takes half the time, is little endian on every machine, and unpacks to a tuple.
def _pack(kind: str, values: Sequence[Any], what: str) -> bytes:
    """Pack each value into four bytes."""
    try:
        return struct.pack(f"<{len(values)}{kind}", *values)
    except (struct.error, OverflowError) as error:
        raise UnstorableError(
            f"{what} cannot be stored: {error}; expected token ids and logprobs of 32 bits"
        ) from error


def _unpack(kind: str, blob: bytes) -> tuple[Any, ...]:
    return struct.unpack(f"<{len(blob) // 4}{kind}", blob)
