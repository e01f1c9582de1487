"""Faults of the world around a run: each ends it with one error that says what to do, and a resume loses nothing."""

import asyncio
import contextlib
import random
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from agentrl_core import Trainer, workflow_context
from agentrl_core.errors import RunError, StoreError
from agentrl_core.run import resume
from agentrl_core.stores import sqlite_connection, sqlite_file
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Outcome

DATABASE = Path("runs/r/agentrl.db")


class Asking:
    """Makes one call per episode; `fault()` is called once, before the second record of the task t3."""

    def __init__(self, fault=None):
        self._fault = fault

    async def run(self, data, *, base_url, api_key, http_client):
        slot = workflow_context.get().sample_index
        if self._fault is not None and (data["id"], slot) == ("t3", 1):
            fault, self._fault = self._fault, None
            fault()
        body = {"model": "default", "messages": data["messages"], "max_tokens": 2}
        headers = {"authorization": f"Bearer {api_key}"}
        (await http_client.post(f"{base_url}/v1/chat/completions", json=body, headers=headers)).raise_for_status()
        return float(slot)


@pytest.fixture
def config(project):
    """A run of three steps, t0 and t1 for the first, t2 and t3 for the second one, with one episode at a time."""
    return project(
        name="r",
        data={"shuffle": False},
        rollout={"group_size": 2, "max_concurrent_rollouts": 1},
        trainer={"steps": 3},
    )


def stored():
    """Return live steps, voided steps, and records."""

    async def read():
        store = SQLiteStore.read(DATABASE)
        try:
            steps = await store.steps("r")
            return (
                [row for row in steps if not row.voided],
                [row for row in steps if row.voided],
                await store.records("r"),
            )
        finally:
            await store.close()

    return asyncio.run(read())


def check_whole():
    """Three steps, all of whose records were scored once and trained once."""
    live, _, records = stored()
    assert [row.step for row in live] == [1, 2, 3]
    trained = [name for row in live for name in row.records]
    assert sorted(trained) == sorted(record.id for record in records if record.outcome is Outcome.SCORED)
    slots = [(record.task_id, record.group_id, record.sample_index) for record in records if record.id in trained]
    assert len(slots) == len(set(slots)) == 3 * 2 * 2


def other_connection():
    return contextlib.closing(sqlite3.connect(DATABASE, isolation_level=None, check_same_thread=False, timeout=60))


def test_a_run_waits_for_a_store_that_is_away_for_a_while(config, monkeypatch):
    met, real = [], sqlite_connection.store_error
    with contextlib.ExitStack() as closing:

        def locked():
            other = closing.enter_context(other_connection())
            other.execute("BEGIN IMMEDIATE")

            def error(*details):
                found = real(*details)
                if isinstance(found, sqlite_file.BusyError):
                    met.append(found)
                    if len(met) == 5:
                        other.execute("ROLLBACK")
                return found

            monkeypatch.setattr(sqlite_connection, "store_error", error)

        Trainer(config).train(workflow=Asking(locked))
    assert len(met) >= 5
    check_whole()
    assert {record.outcome for record in stored()[2]} == {Outcome.SCORED}


class Locked:
    told = r"agentrl\.db: cannot .*locked; another process has held its write lock .*; end that process"

    def __init__(self, monkeypatch):
        self._monkeypatch, self._held = monkeypatch, contextlib.ExitStack()

    def harm(self):
        self._held.enter_context(other_connection()).execute("BEGIN IMMEDIATE")
        self._monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0.0)

    def mend(self):
        self._held.close()
        self._monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 30.0)


class Moved:
    """As if the folder's disk were gone for a while."""

    told = r"agentrl\.db: cannot .*: the file was moved or removed while in use; put it back"

    def __init__(self, monkeypatch):
        self._aside = DATABASE.with_name("aside.db")

    def harm(self):
        DATABASE.rename(self._aside)

    def mend(self):
        self._aside.rename(DATABASE)


class Full:
    """No page can be added, as on a full disk; SQLite keeps this limit for each connection."""

    told = r"agentrl\.db: cannot .* full; free space on that disk and resume; nothing that was stored before is lost"

    def __init__(self, monkeypatch):
        self._stores, opening = [], SQLiteStore._open

        def opened(store, *details):
            opening(store, *details)
            self._stores.append(store)

        monkeypatch.setattr(SQLiteStore, "_open", opened)

    def harm(self):
        for store in self._stores:
            (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
            store._connection.execute(f"PRAGMA max_page_count = {pages}")

    def mend(self):
        self._stores.clear()


class DamagedArray:
    """One log-probability of the record before is cut in half."""

    told = r"agentrl\.db: cannot .*: a row is damaged .*continue from a copy"
    _last = "(SELECT max(rowid) FROM interactions)"

    def __init__(self, monkeypatch):
        self._was = b""

    def harm(self):
        with other_connection() as db:
            ((self._was,),) = db.execute(f"SELECT logprobs FROM interactions WHERE rowid = {self._last}")
            (self._row,) = db.execute(f"SELECT {self._last}").fetchone()
            db.execute("UPDATE interactions SET logprobs = ? WHERE rowid = ?", (self._was[:-2], self._row))

    def mend(self):
        """Put the copy in its place."""
        with other_connection() as db:
            db.execute("UPDATE interactions SET logprobs = ? WHERE rowid = ?", (self._was, self._row))


@pytest.mark.parametrize("kind", [Locked, Moved, Full, DamagedArray])
def test_a_fault_of_the_store_ends_the_run_with_its_cure_and_loses_nothing(config, monkeypatch, kind):
    fault = kind(monkeypatch)
    try:
        with pytest.raises(StoreError, match=fault.told) as ended:
            Trainer(config).train(workflow=Asking(fault.harm))
        assert "\n" not in str(ended.value)
    finally:
        fault.mend()
    live, _, records = stored()
    assert 1 <= len(live) < 3
    scored = {record.id for record in records if record.outcome is Outcome.SCORED}
    assert len(scored) >= 7
    resume(Path("runs/r"), workflow=Asking())
    check_whole()
    assert scored <= {name for row in stored()[0] for name in row.records}


def test_wall_clocks_that_are_wrong_by_an_hour_change_nothing(config, monkeypatch):
    """The clock jumps at every look, and the run is resumed an hour before it began."""
    now = time.time

    def jumping():
        return now() + random.uniform(-3600, 3600)

    with monkeypatch.context() as patch:
        patch.setattr(time, "time", jumping)
        Trainer(config, overrides=["trainer.steps=2"]).train(workflow=Asking())
        patch.setattr(time, "time", lambda: now() - 3600)
        resume(Path("runs/r"), ["trainer.steps=3"], workflow=Asking())
    check_whole()
    live, _, records = stored()
    tasks = {record.id: record.task_id for record in records}
    assert [sorted({tasks[name] for name in row.records}) for row in live] == [["t0", "t1"], ["t2", "t3"], ["t0", "t4"]]
    assert {record.outcome for record in records} == {Outcome.SCORED}


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.pt"])
def test_a_half_written_checkpoint_is_refused_and_the_one_before_loses_nothing(config, file):
    Trainer(config, overrides=["trainer.steps=2"]).train(workflow=Asking())
    before = stored()
    newest = Path("runs/r/checkpoints/step-2")
    content = (newest / file).read_bytes()
    (newest / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(RunError, match=rf"step-2.*{file}") as refusal:
        resume(Path("runs/r"), ["trainer.steps=3"], workflow=Asking())
    assert "remove that folder to go on from the one before" in str(refusal.value)
    assert stored()[0] == before[0]
    shutil.rmtree(newest)
    resume(Path("runs/r"), ["trainer.steps=3"], workflow=Asking())
    check_whole()
    live, voided, _ = stored()
    assert [row.step for row in voided] == [2]
    assert sorted(live[1].records) == sorted(voided[0].records), "the same records, and none sampled once more"
