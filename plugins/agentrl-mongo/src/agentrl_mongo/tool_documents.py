"""Conversion between tool calls and documents; very long contents are kept apart, as the arrays of LLM calls are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bson import ObjectId, encode

from agentrl_core.api.audit import escaped
from agentrl_core.types import ToolCall, ToolOutcome
from agentrl_mongo.documents import LONGEST_PLAIN, next_order, parts_of, plain, restored

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentrl_mongo.documents import Document

_NAMES = ("call_id", "name", "server", "tool", "isolation", "error")
_VALUES = ("arguments", "sent", "shown", "raw")
"""Fields of any length."""


def tool_call_to(run_id: str, call: ToolCall) -> tuple[Document, list[Document]]:
    """Convert a tool call to its document, and to those that hold long contents, which are written first."""
    what = f"tool call {call.id}"
    values = {
        "arguments": call.arguments if isinstance(call.arguments, str) else dict(call.arguments),
        "sent": None if call.sent is None else dict(call.sent),
        "shown": call.shown,
        "raw": call.raw,
    }
    kept: Document = {name: plain(value, what) for name, value in values.items()}
    binary = {}
    if len(encode(kept)) > LONGEST_PLAIN:
        kept, binary = {}, {name: json.dumps(value).encode() for name, value in values.items()}
    own = {
        "_id": ObjectId(),
        "run_id": run_id,
        "id": escaped(call.id),
        "record_id": call.record_id,
        "seq": call.seq,
        **{name: escaped(getattr(call, name)) for name in _NAMES},
        "outcome": call.outcome.value,
        **kept,
        "attempts": call.attempts,
        "middleware": [escaped(name) for name in call.middleware],
        "started_at": float(call.started_at),
        "finished_at": float(call.finished_at),
        "digest": call.digest,
        "order": next_order(),
    }
    return own, parts_of(own["_id"], call.record_id, binary) if binary else []


def tool_call_from(kept: Document, parts: Iterable[Document]) -> ToolCall:
    """Restore a tool call from its document, and from those of its long contents by part."""
    if "shown" in kept:
        values: dict[str, Any] = {name: restored(kept[name]) for name in _VALUES}
    else:
        ordered = list(parts)
        values = {name: json.loads(b"".join(part.get(name, b"") for part in ordered)) for name in _VALUES}
    return ToolCall(
        id=kept["id"],
        record_id=kept["record_id"],
        seq=int(kept["seq"]),
        **{name: kept[name] for name in _NAMES},
        outcome=ToolOutcome(kept["outcome"]),
        arguments=values["arguments"],
        sent=values["sent"],
        shown=tuple(values["shown"]),
        raw=None if values["raw"] is None else tuple(values["raw"]),
        attempts=int(kept["attempts"]),
        middleware=tuple(kept["middleware"]),
        started_at=kept["started_at"],
        finished_at=kept["finished_at"],
        digest=kept["digest"],
    )
