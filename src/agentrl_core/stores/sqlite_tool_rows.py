"""Conversion between tool calls and rows of a SQLite store: arguments and contents as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from agentrl_core.api.audit import escaped
from agentrl_core.stores.sqlite_rows import Table, from_json, to_json, to_json_fast
from agentrl_core.types import ToolCall, ToolOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

TOOL_CALLS = Table(
    "tool_calls",
    "run_id, id, record_id, seq, digest, call_id, name, server, tool, isolation, outcome, error, attempts, "
    "middleware, started_at, finished_at, arguments, sent, shown, raw",
)


def tool_call_row(run_id: str, call: ToolCall) -> tuple[object, ...]:
    """Convert a tool call to the columns of `TOOL_CALLS`."""
    what = f"tool call {call.id}"
    return (
        run_id,
        escaped(call.id),
        call.record_id,
        call.seq,
        call.digest,
        escaped(call.call_id),
        escaped(call.name),
        escaped(call.server),
        escaped(call.tool),
        escaped(call.isolation),
        call.outcome.value,
        escaped(call.error),
        call.attempts,
        to_json([escaped(name) for name in call.middleware], what),
        call.started_at,
        call.finished_at,
        # Arguments may have NaN, which Python reads from a model's text; contents are JSON already.
        to_json(call.arguments if isinstance(call.arguments, str) else dict(call.arguments), what),
        None if call.sent is None else to_json(dict(call.sent), what),
        to_json_fast(call.shown, what),
        None if call.raw is None else to_json_fast(call.raw, what),
    )


def tool_call_from(row: Sequence[Any]) -> ToolCall:
    """Restore a tool call from its columns."""
    return ToolCall(
        id=row[1],
        record_id=row[2],
        seq=row[3],
        digest=row[4],
        call_id=row[5],
        name=row[6],
        server=row[7],
        tool=row[8],
        isolation=row[9],
        outcome=ToolOutcome(row[10]),
        error=row[11],
        attempts=row[12],
        middleware=tuple(json.loads(row[13])),
        started_at=row[14],
        finished_at=row[15],
        arguments=json.loads(row[16]),
        sent=None if row[17] is None else json.loads(row[17]),
        shown=tuple(from_json(row[18])),
        raw=None if row[19] is None else tuple(from_json(row[19])),
    )
