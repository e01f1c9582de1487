"""Conversion between values and documents, which are plain where MongoDB allows it, so that Compass shows them.

The round trip is exact, except that logprobs are rounded to 32-bit floats. A part of a JSON value that a document
cannot hold (a key with `$` or `.`, an integer beyond 64 bits, half a surrogate pair, deep nesting) becomes
`{"(json)": TEXT}`.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
from bson import ObjectId, encode

from agentrl_core.api.audit import escaped
from agentrl_core.api.kept_tokens import compress, decompress
from agentrl_core.api.run_rows import RunRow, SealRow, SessionRow, StepRow, VersionRow
from agentrl_core.errors import UnstorableError
from agentrl_core.types import FinishReason, Grammar, Interaction, Outcome, Record, Sampling, Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Document: TypeAlias = "dict[str, Any]"

_AS_TEXT = "(json)"
_DEEPEST = 40
"""Nesting from which on a value is kept as text; MongoDB allows 100 levels in a whole document."""
LONGEST_PLAIN = 8 * 2**20
"""Size of a call's messages or contents from which on they are binary, in bytes; a document has 16 MiB at most."""
_PART_BYTES = 8 * 2**20
"""Most bytes of arrays in one document."""
_ARRAYS = (("prompt_ids", "i"), ("output_ids", "i"), ("logprobs", "f"))
_TEXTS = ("messages", "output")
_SAMPLING_DEFAULTS = [(field.name, field.default) for field in attrs.fields(Sampling)]
_last_order = 0
_ordering = threading.Lock()


def next_order() -> int:
    """Return a number that rises with every call of a process and follows the clock between processes.

    Documents are listed in its order. It also tells a writer that repeats an insert whether the document that is
    already there is its own.
    """
    global _last_order  # noqa: PLW0603 - the process's own clock
    with _ordering:
        _last_order = max(_last_order + 1, time.time_ns())
        return _last_order


def plain(value: object, what: str, depth: int = 0) -> Any:
    """Convert a JSON value to what BSON holds exactly; raise `UnstorableError` naming `what` if it is not JSON."""
    if value is None or isinstance(value, bool | float):
        return float(value) if isinstance(value, float) else value
    if isinstance(value, str):
        return str.__str__(value) if _encodable(value) else _as_text(value, what)
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else _as_text(value, what)
    if isinstance(value, list | tuple) and depth < _DEEPEST:
        return [plain(item, what, depth + 1) for item in value]
    if isinstance(value, dict) and depth < _DEEPEST and all(map(_is_field, value)):
        return {key: plain(item, what, depth + 1) for key, item in value.items()}
    return _as_text(value, what)


def restored(value: Any) -> Any:
    """Return the JSON value that `plain` converted."""
    if isinstance(value, dict):
        if value.keys() == {_AS_TEXT}:
            return json.loads(value[_AS_TEXT])
        return {key: restored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [restored(item) for item in value]
    # bson reads integers of 64 bits as a class of its own.
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


NEW_RUN: Document = {
    "revision": 0,
    "plan": None,
    "next_index": 0,
    "admitted_steps": -1,
    "trained_steps": 0,
    "replaced": {},
    "control_revision": 0,
    "wanted": "run",
    "limits": [],
    "cancel": [],
}
"""State of a run's sampling and control before its first member; see `sampling_state`."""


def run_to(run: RunRow) -> Document:
    """Convert a run."""
    what = f"run '{run.id}'"
    return {
        "_id": run.id,
        "created_at": run.created_at,
        "status": run.status,
        "error": escaped(run.error),
        "config": plain(dict(run.config), what),
        "components": plain(dict(run.components), what),
        "sampling_closed": False,
        **NEW_RUN,
        "last_version": -1,
        "order": next_order(),
    }


def run_from(kept: Document) -> RunRow:
    """Restore a run."""
    return RunRow(
        id=kept["_id"],
        created_at=kept["created_at"],
        status=kept["status"],
        config=restored(kept["config"]),
        components=restored(kept["components"]),
        error=kept["error"],
    )


def task_to(run_id: str, task: Task, task_set: str) -> Document:
    """Convert a task."""
    what = f"task '{task.id}'"
    fields = {"id": task.id, "answer": task.answer, "scorer": task.scorer, "answer_schema": task.answer_schema}
    kept = {"run_id": run_id, "task_set": task_set, **plain(fields, what), "data": plain(dict(task.data), what)}
    return kept | {"order": next_order()}


def task_from(kept: Document) -> Task:
    """Restore a task."""
    fields = {name: restored(kept[name]) for name in ("id", "data", "answer", "scorer", "answer_schema")}
    return Task(**fields)


def record_to(record: Record) -> Document:
    """Convert an announced record."""
    what = f"record {record.id}"
    fields = attrs.asdict(record, recurse=False, filter=lambda field, _: field.name not in ("id", "outcome"))
    for name in ("rewards", "score_parts", "score_details"):
        fields[name] = dict(fields[name])
    kept = plain(fields, what) | {"reason": escaped(record.reason), "detail": escaped(record.detail)}
    return {"_id": record.id, "outcome": record.outcome.value, **kept, "order": next_order()}


_FINAL = (
    *("outcome", "reason", "detail", "reward", "rewards", "score", "score_parts", "score_details", "marks"),
    "finished_at",
)


def final_fields(record: Record) -> Document:
    """Return the fields of a record that its end sets."""
    kept = record_to(record)
    return {name: kept[name] for name in _FINAL}


def record_from(kept: Document) -> Record:
    """Restore a record; `score_details` stay empty if they were not read."""
    names = [field.name for field in attrs.fields(Record) if field.name in kept]
    fields = {name: restored(kept[name]) for name in names}
    fields["marks"] = tuple(fields.get("marks", ()))  # earlier versions had none
    return Record(id=kept["_id"], **fields | {"outcome": Outcome(kept["outcome"])})


def interaction_to(run_id: str, interaction: Interaction, tools: str | None) -> tuple[Document, list[Document]]:
    """Convert an interaction to its document, and to those that hold its arrays; `tools` is the key of its tools.

    The documents of arrays are written first, so that an interaction that is there is complete.
    """
    what = f"interaction {interaction.id}"
    binary = {name: _pack(kind, getattr(interaction, name), what) for name, kind in _ARRAYS}
    if interaction.kept:
        binary["kept"] = compress(interaction.kept)
    texts: Document = {"messages": plain(interaction.messages, what), "output": plain(interaction.output, what)}
    if len(encode(texts)) > LONGEST_PLAIN:
        binary |= {name: json.dumps(getattr(interaction, name)).encode() for name in _TEXTS}
        texts = {}
    own = {
        "_id": ObjectId(),
        "run_id": run_id,
        "id": interaction.id,
        "record_id": interaction.record_id,
        "seq": interaction.seq,
        "parent": interaction.parent,
        **texts,
        "prompt_tokens": len(interaction.prompt_ids),
        "output_tokens": len(interaction.output_ids),
        "versions": [list(item) for item in interaction.versions],
        "tools": tools,
        "sampling": plain(_sampling_to(interaction.sampling), what),
        "requested": plain(dict(interaction.requested), what),
        "finish_reason": interaction.finish_reason.value,
        **{name: plain(getattr(interaction, name), what) for name in _SIMPLE},
        "digest": interaction.digest,
        "order": next_order(),
    }
    return own, parts_of(own["_id"], interaction.record_id, binary)


_SIMPLE = (
    *("model", "api", "trainable", "upstream", "cached_tokens", "tool_errors", "witness", "retry_key"),
    *("started_at", "finished_at"),
)


def parts_of(owner: ObjectId, record_id: str, binary: Mapping[str, bytes]) -> list[Document]:
    """Distribute the arrays of a call over as few documents as their size allows; nearly always this is one."""
    parts: list[Document] = [{}]
    size = 0
    for name, value in binary.items():
        for start in range(0, len(value), _PART_BYTES):
            piece = value[start : start + _PART_BYTES]
            if size + len(piece) > _PART_BYTES:
                parts.append({})
                size = 0
            parts[-1][name] = piece
            size += len(piece)
    return [
        {"_id": ObjectId(), "of": owner, "record_id": record_id, "part": number, **part}
        for number, part in enumerate(parts)
    ]


def interaction_from(kept: Document, parts: Iterable[Document], tools: Sequence[Mapping[str, Any]]) -> Interaction:
    """Restore an interaction from its document, from those of its arrays by part, and from its tools."""
    ordered = list(parts)
    binary = {name: b"".join(part.get(name, b"") for part in ordered) for name in (*dict(_ARRAYS), *_TEXTS, "kept")}
    texts = {name: restored(kept[name]) if name in kept else json.loads(binary[name]) for name in _TEXTS}
    arrays: Document = {name: _unpack(kind, binary[name]) for name, kind in _ARRAYS}
    return Interaction(
        id=kept["id"],
        record_id=kept["record_id"],
        seq=int(kept["seq"]),
        parent=kept["parent"],
        messages=tuple(texts["messages"]),
        output=texts["output"],
        versions=tuple((int(version), int(count)) for version, count in kept["versions"]),
        tools=tuple(tools),
        sampling=_sampling_from(restored(kept["sampling"])),
        requested=restored(kept["requested"]),
        finish_reason=FinishReason(kept["finish_reason"]),
        **{name: restored(kept[name]) for name in _SIMPLE},
        digest=kept.get("digest", ""),  # earlier versions took none
        kept=decompress(binary["kept"]),
        **arrays,
    )


def session_to(session: SessionRow) -> Document:
    """Convert a session."""
    what = f"the session of record {session.record_id}"
    fields = attrs.asdict(session, recurse=False, filter=lambda field, _: field.name not in _SESSION_SPECIAL)
    return {
        "_id": session.record_id,
        **plain(fields, what),
        "key_hash": session.key_hash,
        "token_hash": session.token_hash,
        "seed_key": plain(session.seed_key, what),
        "policy": plain(dict(session.policy), what),
        "rewards": plain(dict(session.rewards), what),
        "order": next_order(),
    }


_SESSION_SPECIAL = ("record_id", "key_hash", "token_hash", "seed_key", "policy", "rewards")


def session_from(kept: Document) -> SessionRow:
    """Restore a session."""
    fields = {field.name: restored(kept[field.name]) for field in attrs.fields(SessionRow) if field.name in kept}
    return SessionRow(record_id=kept["_id"], **fields | {"seed_key": tuple(fields["seed_key"])})


def step_to(step: StepRow) -> Document:
    """Convert a step."""
    return {
        "_id": ObjectId(),
        "run_id": step.run_id,
        "step": step.step,
        "version": step.version,
        "groups": list(step.groups),
        "records": list(step.records),
        "metrics": plain(dict(step.metrics), f"step {step.step}"),
        "voided": step.voided,
        "order": next_order(),
    }


def step_from(kept: Document) -> StepRow:
    """Restore a step."""
    fields = {field.name: restored(kept[field.name]) for field in attrs.fields(StepRow)}
    return StepRow(**fields | {"groups": tuple(kept["groups"]), "records": tuple(kept["records"])})


def version_from(kept: Document) -> VersionRow:
    """Restore a publication of weights."""
    voided = bool(kept.get("voided"))
    return VersionRow(
        version=int(kept["version"]), step=int(kept["step"]), published_at=kept["published_at"], voided=voided
    )


def seal_to(seal: SealRow) -> Document:
    """Convert a link of the audit chain."""
    return {"_id": f"{seal.run_id}/{seal.number}", **attrs.asdict(seal), "order": next_order()}


def seal_from(kept: Document) -> SealRow:
    """Restore a link of the audit chain."""
    return SealRow(run_id=kept["run_id"], number=int(kept["number"]), body=kept["body"], digest=kept["digest"])


def _sampling_to(sampling: Sampling) -> Document:
    """Return the sampling settings that differ from the defaults."""
    kept = {name: value for name, default in _SAMPLING_DEFAULTS if (value := getattr(sampling, name)) != default}
    return kept if sampling.grammar is None else {**kept, "grammar": attrs.asdict(sampling.grammar)}


def _sampling_from(kept: Document) -> Sampling:
    values: Document = {name: tuple(item) if isinstance(item, list) else item for name, item in kept.items()}
    if "grammar" in values:
        values["grammar"] = Grammar(**values["grammar"])
    return Sampling(**values)


def _is_field(key: object) -> bool:
    """Return whether a key can be a field's name that every server and tool takes for a plain one."""
    return (
        type(key) is str and key not in ("", _AS_TEXT) and not any(sign in key for sign in "$.\0") and _encodable(key)
    )


def _encodable(value: str) -> bool:
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _as_text(value: object, what: str) -> dict[str, str]:
    try:
        return {_AS_TEXT: json.dumps(value)}
    except (TypeError, ValueError, RecursionError) as error:
        raise UnstorableError(f"{what} cannot be stored: {error}; expected values that JSON can represent") from error


def _pack(kind: str, values: Sequence[Any], what: str) -> bytes:
    """Pack each value into four bytes, little endian."""
    try:
        return struct.pack(f"<{len(values)}{kind}", *values)
    except (struct.error, OverflowError) as error:
        raise UnstorableError(
            f"{what} cannot be stored: {error}; expected token ids and logprobs of 32 bits"
        ) from error


def _unpack(kind: str, blob: bytes) -> tuple[Any, ...]:
    return struct.unpack(f"<{len(blob) // 4}{kind}", blob)
