"""Output of commands: aligned tables for people, JSON for machines."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import attrs
import typer

if TYPE_CHECKING:
    from collections.abc import Sequence


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns, without a header if `header` is empty."""
    lines = [header, *rows] if header else rows
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    for line in lines:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_json(value: Any) -> None:
    """Print `value` as JSON, attrs objects as their fields; NaN and infinity, which JSON lacks, become null."""
    typer.echo(json.dumps(_plain(value), indent=2))


def _plain(value: Any) -> Any:
    if attrs.has(type(value)):
        return {field.name: _plain(getattr(value, field.name)) for field in attrs.fields(type(value))}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
