"""The export format `parquet`: the content of the format `jsonl` in columns, one row per record; needs pyarrow.

Numbers, texts and token ids are columns of their own. Values of any shape (task rows, messages, tools, a scorer's
details) are JSON in text columns.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, BinaryIO

from agentrl_core.config.invocation import pip_install
from agentrl_core.data.export.episodes import FORMAT, TaskEpisode, read_episode
from agentrl_core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

ROWS_AT_ONCE = 64
"""Records per row group: an episode of many turns has megabytes."""

_RECORD_JSON = ("rewards", "score_parts", "score_details", "marks")
_CALL_JSON = ("messages", "output", "tools", "sampling", "requested", "versions")
_TOOL_CALL_JSON = ("arguments", "sent", "shown", "raw", "middleware")


def write_parquet(rows: Iterable[Mapping[str, Any]], file: BinaryIO) -> None:
    """Write rows of `episode_row` as a parquet file; raise `UsageError` if pyarrow is not installed."""
    arrow, parquet = _pyarrow()
    schema = _schema(arrow)
    batch: list[dict[str, Any]] = []
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for row in rows:
            batch.append(_columns(row))
            if len(batch) == ROWS_AT_ONCE:
                writer.write_table(arrow.Table.from_pylist(batch, schema=schema))
                batch.clear()
        if batch:
            writer.write_table(arrow.Table.from_pylist(batch, schema=schema))


def read_parquet(path: Path) -> list[TaskEpisode]:
    """Read a file that `write_parquet` wrote."""
    _, parquet = _pyarrow()
    return [read_episode(_row(columns)) for columns in parquet.read_table(path).to_pylist()]


def _columns(row: Mapping[str, Any]) -> dict[str, Any]:
    record, calls = row["record"], row["interactions"]
    return {
        "task": _json(row["task"]),
        **_cells(record, _RECORD_JSON),
        "interactions": [_cells(call, _CALL_JSON) for call in calls],
        "tool_calls": [_cells(call, _TOOL_CALL_JSON) for call in row["tool_calls"]],
    }


def _cells(fields: Mapping[str, Any], as_json: Sequence[str]) -> dict[str, Any]:
    plain = {name: _utf8(value) if isinstance(value, str) else value for name, value in fields.items()}
    return plain | {name: _json(fields[name]) for name in as_json}


def _row(columns: dict[str, Any]) -> dict[str, Any]:
    task, calls = columns.pop("task"), columns.pop("interactions")
    tool_calls = columns.pop("tool_calls", ())  # files of earlier versions lack it, and `marks`
    return {
        "format": FORMAT,
        "task": json.loads(task),
        "record": _restored(columns, _RECORD_JSON),
        "interactions": [_restored(call, _CALL_JSON) for call in calls],
        "tool_calls": [_restored(call, _TOOL_CALL_JSON) for call in tool_calls],
    }


def _restored(cells: Mapping[str, Any], as_json: Sequence[str]) -> dict[str, Any]:
    return {**cells, **{name: json.loads(cells[name]) for name in as_json if name in cells}}


def _json(value: Any) -> str:
    return _utf8(json.dumps(value, ensure_ascii=False))


def _utf8(text: str) -> str:
    """Return a text with lone surrogates, which UTF-8 lacks, as escapes, which JSON reads as what they were."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _schema(arrow: Any) -> Any:
    text, number, time, flag = arrow.string(), arrow.int64(), arrow.float64(), arrow.bool_()
    call = {
        **dict.fromkeys(("id", "record_id"), text),
        "seq": number,
        "parent": text,
        "prompt_ids": arrow.list_(arrow.int32()),
        "output_ids": arrow.list_(arrow.int32()),
        "logprobs": arrow.list_(arrow.float64()),
        "kept": arrow.list_(arrow.list_(arrow.int32())),
        **dict.fromkeys(_CALL_JSON, text),
        **dict.fromkeys(("finish_reason", "model", "api", "upstream", "witness", "retry_key", "digest"), text),
        "trainable": flag,
        "cached_tokens": number,
        "tool_errors": number,
        "started_at": time,
        "finished_at": time,
    }
    tool_call = {
        **dict.fromkeys(("id", "record_id"), text),
        "seq": number,
        **dict.fromkeys(("call_id", "name", "server", "tool", "isolation", "outcome", "error", "digest"), text),
        **dict.fromkeys(_TOOL_CALL_JSON, text),
        "attempts": number,
        "started_at": time,
        "finished_at": time,
    }
    record = {
        "task": text,
        **dict.fromkeys(("id", "run_id", "task_id", "group_id"), text),
        "sample_index": number,
        "attempt": number,
        "is_eval": flag,
        **dict.fromkeys(("task_set", "outcome", "reason", "detail"), text),
        "reward": time,
        "score": time,
        **dict.fromkeys(_RECORD_JSON, text),
        "started_at": time,
        "finished_at": time,
        "interactions": arrow.list_(arrow.struct(list(call.items()))),
        "tool_calls": arrow.list_(arrow.struct(list(tool_call.items()))),
    }
    return arrow.schema(list(record.items()))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        fix = pip_install("agentrl-core[parquet]")
        raise UsageError(f"--format parquet needs pyarrow, which is not installed; install it: {fix}") from error
    return pa, pa.parquet
