"""The tracker `jsonl`: appends one event per line to `metrics.jsonl` in the run's directory; also reads that file."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import orjson

from agentrl_core.errors import RunError
from agentrl_core.stores.files import private_opener

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentrl_core.api.trackers import EvalReport, RunInfo, RunSummary, StepReport

FILE_NAME = "metrics.jsonl"


class JsonlTracker:
    """Tracker that writes `metrics.jsonl`: per line `event`, `time` and the fields of the event's report.

    Events are run_started, evaluated, step_finished and run_finished. A resumed run appends to the file. Each line is
    passed to the operating system before the call returns, so it survives a killed process. NaN and infinities, which
    JSON does not have, become null.
    """

    def __init__(self, *, run_dir: Path) -> None:
        self.path = Path(run_dir) / FILE_NAME
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: each line goes to the operating system in one write, and a full disk shows at once.
            self._file = open(self.path, "ab", buffering=0, opener=private_opener)  # noqa: SIM115 - `close` does
            self._torn = _ends_inside_a_line(self.path)
        except OSError as error:
            raise RunError(f"{self.path}: cannot open: {error.strerror}") from error

    def notice(self, message: str) -> None:
        """Do nothing: notices are for people, and the file is for programs."""

    def run_started(self, run: RunInfo) -> None:
        """Write the run's name, config and components."""
        self._write("run_started", run)

    def evaluated(self, report: EvalReport) -> None:
        """Write an evaluation."""
        self._write("evaluated", report)

    def step_finished(self, report: StepReport) -> None:
        """Write a step's metrics."""
        self._write("step_finished", report)

    def run_finished(self, summary: RunSummary) -> None:
        """Write how the run ended."""
        self._write("run_finished", summary)

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        self._file.close()

    def _write(self, event: str, fields: Any) -> None:
        row = {"event": event, "time": time.time(), **attrs.asdict(fields)}
        line = orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)
        # After a line that was cut short (killed process, full disk), begin a new one, so that no other line is lost.
        if self._torn:
            line = b"\n" + line
        # True until the write has succeeded: an error may leave a part of the line.
        self._torn = True
        try:
            written = self._file.write(line)
        except OSError as error:
            raise RunError(f"{self.path}: cannot write: {error.strerror}; free space on that disk") from error
        if written != len(line):
            raise RunError(f"{self.path}: cannot write: no space left on the disk; free space there")
        self._torn = False


def _ends_inside_a_line(path: Path) -> bool:
    """Return whether the last line was cut short, for example by a killed process."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a `metrics.jsonl`; skip lines that a killed process cut short."""
    if not path.is_file():
        return
    with path.open("rb") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(event, dict):
                yield event
