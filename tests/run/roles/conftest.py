"""Fixtures for runs whose parts are processes of their own."""

import asyncio
import json
import re
import signal
import time
from contextlib import ExitStack

import pytest

from agentrl_core.api.stores import IDENTITY, RunRow
from agentrl_core.run.directory import RunDirectory
from agentrl_core.stores.sqlite import SQLiteStore

_TABLE_ROW = r"^\s+{step}\s+\d+\s"


class Process:
    """One member as a process, with its output so far."""

    def __init__(self, program):
        self._program, self.told = program, ""

    @property
    def pid(self):
        return self._program.pid

    def until(self, pattern):
        """Read the output up to a line that matches; fail with what there is if the process ends before."""
        for line in self._program.stdout:
            self.told += line
            if re.search(pattern, line):
                return
        raise AssertionError(f"no line matches {pattern!r} in:\n{self.told}")

    def until_step(self, step):
        self.until(_TABLE_ROW.format(step=step))

    def kill(self):
        self.signal(signal.SIGKILL)
        assert self.ends() == -signal.SIGKILL

    def signal(self, number):
        self._program.send_signal(number)

    def ends(self):
        """Return the exit code, after the whole output."""
        self.told += self._program.stdout.read()
        return self._program.wait(600)


@pytest.fixture
def role(warm, tmp_path):
    """`role("serve", "a.b=c", X="1")` starts a member of the run `r` of `config.yaml`; all are killed at the end."""
    with ExitStack() as running:
        yield lambda name, *overrides, config="config.yaml", **variables: Process(
            running.enter_context(warm.program(name, config, "--name", "r", *overrides, cwd=tmp_path, **variables))
        )


@pytest.fixture
def written(project, tmp_path):
    """Write the small project's config, with sections to change, as `config.yaml`; return its path."""

    def write(**sections):
        config = project(**{"trackers": ["console", "jsonl"], **sections})
        path = tmp_path / "config.yaml"
        path.write_text(json.dumps(config), encoding="utf-8")
        return path

    return write


@pytest.fixture
def stored(written, tmp_path, monkeypatch):
    """`stored("running", trainer={…})` writes `config.yaml` and the run `r` of it; return path and open store."""
    stores = []

    def store(status, **sections):
        path = written(**sections)
        monkeypatch.chdir(tmp_path)
        directory = RunDirectory(tmp_path / "runs" / "r")
        directory.add_missing()
        directory.write_snapshot(json.loads(path.read_text()), tmp_path)
        stores.append(SQLiteStore(path=directory.database))
        identity = {IDENTITY: directory.identity}
        row = RunRow(id="r", created_at=time.time(), status=status, config={}, components=identity)
        asyncio.run(stores[-1].create_run(row))
        return path, stores[-1]

    yield store
    for opened in stores:
        asyncio.run(opened.close())
