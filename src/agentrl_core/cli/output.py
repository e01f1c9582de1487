"""Output of commands: aligned tables for people, JSON for machines."""

from __future__ import annotations

import json
import math
import sys
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import attrs
import typer

from agentrl_core.cli.printing import echo
from agentrl_core.config.terminal import printable
from agentrl_core.errors import NothingLearnedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agentrl_core.api.trackers import RunSummary

JsonSwitch: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns, without a header if `header` is empty."""
    lines = [header, *rows] if header else rows
    lines = [[printable(cell) for cell in line] for line in lines]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    for line in lines:
        echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_json(value: Any) -> None:
    """Print `value` as JSON, attrs objects as their fields; NaN and infinity, which JSON lacks, become null."""
    echo(json.dumps(_plain(value), indent=2))


def print_json_line(value: Any) -> None:
    """Print `value` as one line of JSON, for output that goes on."""
    echo(json.dumps(_plain(value)))


@contextmanager
def only_json(as_json: bool) -> Iterator[Callable[[Any], None]]:  # noqa: FBT001  # the command's own switch
    """Yield a function that prints a result as JSON if `as_json`; what trackers print then goes to standard error."""
    if not as_json:
        yield lambda _: None
        return
    out = sys.stdout
    with redirect_stdout(sys.stderr):

        def show(value: Any) -> None:
            with redirect_stdout(out):
                print_json(value)

        yield show


def check_learned(summary: RunSummary) -> None:
    """Raise `NothingLearnedError` for a run that has finished without a step that changed the weights."""
    if summary.nothing_learned:
        raise NothingLearnedError(summary.nothing_learned)


def size_text(size: int) -> str:
    """Return a number of bytes in the largest unit that fits."""
    for unit, bytes_ in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= bytes_:
            return f"{size / bytes_:.1f} {unit}"
    return f"{size} B"


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
