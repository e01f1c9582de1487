"""Audit trail of a run: digests of the facts that a store keeps, and the chain of seals that commits to them.

A digest is taken of a value, not of the bytes in which a store keeps it, so it is the same in every store. An LLM call
gets its digest before it is stored. The trainer is the only writer of the chain: with every step it adds a `Seal` that
names the digests of everything that is new, and the digest of the seal before. Whoever keeps the digest of the last
seal, the chain's head, can tell later whether anything before it was changed, removed or inserted.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import attrs
import orjson

from agentrl_core.api.run_rows import GroupRow, RunRow, SealRow, StepRow, VersionRow
from agentrl_core.errors import UnstorableError
from agentrl_core.types import Interaction

if TYPE_CHECKING:
    from agentrl_core.types import Record, Sampling, Task, ToolCall

FORMAT: Final = 1
"""Number of the canonical forms below. A form that changes gets a new number, and readers keep the old one."""

_FACT_BYTES = 16
"""Length of a fact's digest. Nobody finds another fact with the same one (2^128 tries)."""
_SEAL_BYTES = 32
"""Length of a seal's digest, which also withstands an author who prepares two seals with one digest (2^128 tries)."""

_Call = TypeVar("_Call", "Interaction", "ToolCall")

SealKind: TypeAlias = Literal["start", "resume", "records", "step", "end"]

_text = attrs.validators.instance_of(str)
_number = attrs.validators.instance_of(int)
_texts = attrs.validators.deep_mapping(_text, _text)


def call_digest(interaction: Interaction) -> str:
    """Return the digest of an LLM call, of all fields but `digest` itself; logprobs count as 32-bit floats.

    Raises `UnstorableError` for a value that no store can keep.
    """
    item = interaction
    try:
        arrays: tuple[bytes, ...] = (
            struct.pack(f"<{len(item.prompt_ids)}i", *item.prompt_ids),
            struct.pack(f"<{len(item.output_ids)}i", *item.output_ids),
            struct.pack(f"<{len(item.logprobs)}f", *item.logprobs),
        )
        # Calls without sampling masks have the digest that earlier versions took.
        if item.kept:
            arrays += (struct.pack(f"<{len(item.kept)}I", *map(len, item.kept)), b"".join(item.kept))
    except (struct.error, OverflowError) as error:
        raise UnstorableError(
            f"interaction {item.id} has no digest: {error}; expected token ids and logprobs of 32 bits"
        ) from error
    facts = [
        *(item.id, item.record_id, item.seq, item.parent, [len(array) for array in arrays]),
        *(item.versions, item.messages, item.output, item.tools, _sampling(item.sampling), dict(item.requested)),
        *(item.finish_reason.value, item.model, item.api, bool(item.trainable), item.upstream),
        *(item.cached_tokens, item.tool_errors, item.witness, item.retry_key),
        *(float(item.started_at), float(item.finished_at)),
    ]
    # The length of each array is among the facts, so no token can move from one array into the next.
    return _digest("call", b"".join((_from_http(facts, f"interaction {item.id}"), *arrays)))


def tool_call_digest(call: ToolCall) -> str:
    """Return the digest of a tool call, of all fields but `digest` itself.

    Raises `UnstorableError` for a value that no store can keep.
    """
    # A store may escape what UTF-8 cannot encode in fields that are plain text.
    names = (call.id, call.record_id, call.call_id, call.name, call.server, call.tool, call.isolation, call.error)
    facts = [
        *([escaped(name) for name in names], call.seq),
        *(call.arguments if isinstance(call.arguments, str) else dict(call.arguments),),
        *(None if call.sent is None else dict(call.sent), call.outcome.value, call.attempts),
        *([escaped(name) for name in call.middleware], float(call.started_at), float(call.finished_at)),
    ]
    what = f"tool call {call.id}"
    contents = _from_http([call.raw, call.shown], what)
    return _digest("tool", b"%d:%b" % (len(contents), contents) + _exact(facts, what))


def digested(call: _Call) -> _Call:
    """Return an LLM call or a tool call with its digest."""
    digest = call_digest(call) if isinstance(call, Interaction) else tool_call_digest(call)
    return attrs.evolve(call, digest=digest)


def escaped(text: str) -> str:
    """Escape the characters that UTF-8 cannot encode; names from a model and messages of errors may have any."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def record_digest(record: Record, group: GroupRow) -> str:
    """Return the digest of an ended record and of the place that its group has in the run."""
    facts = attrs.asdict(record, recurse=False) | {
        "outcome": record.outcome.value,
        "rewards": dict(record.rewards),
        "score_parts": dict(record.score_parts),
        "score_details": dict(record.score_details),
        "is_eval": bool(record.is_eval),
        **{name: _float(getattr(record, name)) for name in ("reward", "score", "started_at", "finished_at")},
    }
    # Records without marks have the digest that earlier versions took.
    if not record.marks:
        del facts["marks"]
    place = [group.id, group.task_id, group.task_set, group.index, group.size, group.version, bool(group.is_eval)]
    return _digest("record", _exact([facts, place], f"record {record.id}"))


def task_digest(task: Task) -> str:
    """Return the digest of a task."""
    facts = [task.id, dict(task.data), task.answer, task.scorer, task.answer_schema]
    return _digest("task", _exact(facts, f"task '{task.id}'"))


def step_digest(step: StepRow) -> str:
    """Return the digest of an optimizer step without `voided`, which follows from later seals."""
    facts = [step.run_id, step.step, step.version, list(step.groups), list(step.records), dict(step.metrics)]
    return _digest("step", _exact(facts, f"step {step.step}"))


def version_digest(row: VersionRow) -> str:
    """Return the digest of a publication of weights without `voided`, which follows from later seals."""
    return _digest("version", _exact([row.version, row.step, float(row.published_at)], f"version {row.version}"))


def run_digest(run: RunRow) -> str:
    """Return the digest of a run's row without its status and error, which change."""
    facts = [run.id, float(run.created_at), dict(run.config), dict(run.components)]
    return _digest("run", _exact(facts, f"run '{run.id}'"))


def config_digest(config: Mapping[str, Any]) -> str:
    """Return the digest of a config as plain data."""
    return _digest("config", _exact(dict(config), "the config"))


@attrs.frozen(kw_only=True)
class Seal:
    """One link of a run's audit chain. All facts but `previous` are those that are new since the link before."""

    run_id: str
    number: int = attrs.field(validator=_number)
    """0-based place in the chain."""
    previous: str
    """Digest of the link before; empty for the first one."""
    kind: SealKind
    """`start` and `resume`: a process began to train. `records`: more records than one link names. `end`: the process
    ended in an orderly way, with nothing left to seal but what `open_groups` names."""
    sealed_at: float
    """Unix seconds, for people."""
    run: str = ""
    """Digest of the run's row; in the first link only."""
    config: str = ""
    """Digest of the config with which the process began."""
    packages: Mapping[str, str] = attrs.field(factory=dict, validator=_texts)
    """Distribution -> version of the packages that the process uses."""
    tasks: Mapping[str, Mapping[str, str]] = attrs.field(
        factory=dict, validator=attrs.validators.deep_mapping(_text, _texts)
    )
    """Task set -> task id -> digest."""
    records: Mapping[str, Sequence[str]] = attrs.field(
        factory=dict, validator=attrs.validators.deep_mapping(_text, attrs.validators.deep_iterable(_text))
    )
    """Record id -> digest of the record, then of each of its calls by `seq` (empty for a call without one)."""
    tool_calls: Mapping[str, Sequence[str]] = attrs.field(
        factory=dict, validator=attrs.validators.deep_mapping(_text, attrs.validators.deep_iterable(_text))
    )
    """Record id -> digest of each of its tool calls by `seq`, for those of `records` that have any."""
    steps: Sequence[tuple[int, int, str, bool]] = ()
    """Number, version, digest and `voided` of each step, in the order in which they were made."""
    voided_after: int | None = attrs.field(default=None, validator=attrs.validators.optional(_number))
    """Number of the step from which a resumed run goes on: the steps above it, of this link too, are voided."""
    versions: Mapping[str, str] = attrs.field(factory=dict, validator=_texts)
    """Policy version in decimal -> digest of its publication."""
    checkpoints: Mapping[str, str] = attrs.field(factory=dict, validator=_texts)
    """Name of a checkpoint's folder -> digest of its manifest; a later link replaces an earlier one's."""
    weights: Mapping[str, str] = attrs.field(factory=dict, validator=_texts)
    """Policy version in decimal -> digest of the manifest of its published weights."""
    model: Mapping[str, str] = attrs.field(factory=dict, validator=_texts)
    """File in the folder of the policy before training -> digest of its content; in one link of the chain."""
    status: str = ""
    """Status with which the process left the run, in a link of the kind `end`."""
    open_groups: Sequence[str] = attrs.field(default=(), validator=attrs.validators.deep_iterable(_text))
    """Groups that other processes were still sampling at the end; their records may end later."""

    @property
    def body(self) -> str:
        """The link as canonical text, which its digest is of."""
        facts = {
            field.name: value
            for field in attrs.fields(Seal)
            if (value := getattr(self, field.name)) != field.default and value not in ((), {}, [])
        }
        return json.dumps({"format": FORMAT, **facts}, separators=(",", ":"), sort_keys=True)

    def row(self) -> SealRow:
        """Return the link as stores keep it."""
        body = self.body
        return SealRow(run_id=self.run_id, number=self.number, body=body, digest=seal_digest(body))

    @classmethod
    def of(cls, row: SealRow) -> Seal:
        """Read a stored link; raise `ValueError` if its body is none, without a look at its digest."""
        try:
            facts = json.loads(row.body)
            if facts.pop("format") != FORMAT:
                raise ValueError("its format is not known")
            seal = cls(**facts)
            steps = tuple(
                (int(step), int(version), str(digest), bool(voided)) for step, version, digest, voided in seal.steps
            )
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError("its text is not that of a seal") from error
        return attrs.evolve(seal, steps=steps)


def seal_digest(body: str) -> str:
    """Return the digest of a seal's text."""
    return hashlib.blake2b(body.encode(errors="surrogatepass"), digest_size=_SEAL_BYTES).hexdigest()


def _digest(kind: str, data: bytes) -> str:
    """Hash with a name of its own for each kind, so that no fact can stand for one of another kind."""
    return hashlib.blake2b(data, digest_size=_FACT_BYTES, person=f"agentrl-{kind}".encode()).hexdigest()


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _sampling(sampling: Sampling) -> dict[str, object]:
    """Return all fields, with numbers of one type: a store may restore 1 as 1.0."""
    fields = {name: getattr(sampling, name) for name in _SAMPLING}
    fields |= {name: float(fields[name]) for name in ("temperature", "top_p")}
    return fields if sampling.grammar is None else fields | {"grammar": [sampling.grammar.kind, sampling.grammar.value]}


_SAMPLING = (
    *("temperature", "top_p", "top_k", "max_tokens", "stop", "stop_token_ids", "min_tokens", "ignore_eos", "seed"),
    "grammar",
)


def _exact(value: object, what: str) -> bytes:
    """Encode a JSON value in one way, with NaN and lone surrogates."""
    try:
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UnstorableError(f"{what} has no digest: {error}; expected values that JSON can represent") from error


def _from_http(value: object, what: str) -> bytes:
    """Encode like `_exact` in a tenth of the time; the value came as JSON, so it has no NaN."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # integers beyond 64 bits and lone surrogates
        return _exact(value, what)
