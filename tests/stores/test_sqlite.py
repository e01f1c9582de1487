"""The built-in store passes the suite, keeps what a killed process wrote, and names every fault of its file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import attrs
import pytest

from agentrl_core.api.claims import Admission
from agentrl_core.api.members import Member
from agentrl_core.api.stores import RunControl, RunRow, SessionRow, StepRow
from agentrl_core.errors import StoreError, UnstorableError
from agentrl_core.stores import sqlite_claims, sqlite_connection, sqlite_file, sqlite_schema, sqlite_training
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.stores.sqlite_tool_rows import TOOL_CALLS
from agentrl_core.types import Interaction, Outcome, Record, Task, ToolCall, ToolOutcome
from agentrl_testing.stores import StoreSuite


class TestSQLiteStore(StoreSuite):
    @pytest.fixture
    def store(self, tmp_path):
        return SQLiteStore(path=tmp_path / "agentrl.db")

    @pytest.fixture
    def reopen(self, store, tmp_path):
        return lambda: SQLiteStore(path=tmp_path / "agentrl.db")

    @pytest.fixture
    def read(self, store, tmp_path):
        return lambda: SQLiteStore.read(tmp_path / "agentrl.db")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "calm-otter" / "agentrl.db"


@pytest.fixture
def store(path):
    store = SQLiteStore(path=path)
    asyncio.run(announce(store))
    yield store
    asyncio.run(store.close())


async def announce(store):
    await store.create_run(RunRow(id="run", created_at=0.0, status="running", config={}, components={}))
    (group,) = await store.add_evaluation("run", "eval", ["task"], version=0, claimable=False)
    await store.add_record(attrs.evolve(RECORD, group_id=group))


async def claimed(store, count=1):
    """Claim the next groups of the run for a member of its own."""
    member = Member(run_id="run", role="sample")
    await store.join(member)
    await store.admit("run", 0)
    return await store.claim_groups(
        "run",
        member.id,
        count,
        admission=Admission(max_head_offpolicyness=0, tasks_per_step=count + 9),
        size=1,
        version=0,
        task_at=str,
    )


RECORD = Record(id="record", run_id="run", task_id="task", group_id="group", sample_index=0)


def call(seq, **fields):
    default = {
        "prompt_ids": (1, 2, 3),
        "output_ids": (4,),
        "logprobs": (-0.5,),
        "versions": ((0, 1),),
        "messages": ({"role": "user", "content": "hi"},),
        "output": {"role": "assistant", "content": "ho"},
    }
    return Interaction(id=f"call-{seq}", record_id="record", seq=seq, **{**default, **fields})


def stored_ids(path):
    store = SQLiteStore.read(path)
    episode = asyncio.run(store.episode("record"))
    asyncio.run(store.close())
    return [interaction.id for interaction in episode.interactions]


def test_a_missing_folder_is_made(path, store):
    assert path.is_file()


def test_equal_tools_are_stored_once(path, store):
    tools = ({"type": "function", "function": {"name": "move", "parameters": {}}},)
    for seq in range(3):
        asyncio.run(store.add_interaction("run", call(seq, tools=tools)))
    asyncio.run(store.add_interaction("run", call(3, tools=(*tools, {"type": "other"}))))
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM tools").fetchone() == (2,)
    db.close()
    episode = asyncio.run(store.episode("record"))
    assert [len(interaction.tools) for interaction in episode.interactions] == [1, 1, 1, 2]


def test_an_interaction_costs_its_own_bytes_only(path, store):
    """A hundred turns of a growing dialogue stay linear: four bytes per token id and per logprob, and the new text."""
    for seq in range(100):
        asyncio.run(store.add_interaction("run", call(seq, prompt_ids=tuple(range(50)), parent=f"call-{seq - 1}")))
    asyncio.run(store.close())
    assert path.stat().st_size < 100 * 1000 + 150_000


def test_hot_queries_are_read_from_their_indexes(path, store):
    queries = {
        "groups_queue": (sqlite_training.QUEUE, ("run",)),
        "groups_pending": (sqlite_claims.PENDING, ("run",)),
        "groups_free": (sqlite_claims.FREE_EVALUATIONS, ("run",)),
        "steps_live": (sqlite_claims.STEPS, ("run",)),
        "interactions_by_record": ("SELECT id FROM interactions WHERE record_id = ? ORDER BY seq", ("record",)),
        "tool_calls_by_record": (f"{TOOL_CALLS.select} WHERE record_id = ? ORDER BY seq", ("record",)),
        "records_by_start": ("SELECT id FROM records WHERE run_id = ? ORDER BY started_at, rowid", ("run",)),
    }
    for index, (query, values) in queries.items():
        plan = str(store._connection.execute(f"EXPLAIN QUERY PLAN {query}", values).fetchall())
        assert index in plan
        assert "TEMP B-TREE" not in plan


def test_a_run_is_readable_while_it_writes(path, store):
    asyncio.run(store.add_interaction("run", call(0)))
    reader = SQLiteStore.read(path)
    asyncio.run(store.add_interaction("run", call(1)))
    assert len(asyncio.run(reader.episode("record")).interactions) == 2
    with pytest.raises(StoreError, match="readonly"):
        asyncio.run(reader.update_run("run", status="finished"))
    asyncio.run(reader.close())


def test_a_taker_sleeps_until_something_changes(path, store, monkeypatch):
    """Neither polling while it waits nor spinning after a change that was not enough."""
    monkeypatch.setattr(sqlite_connection, "RECHECK_S", 3600.0)
    looks = []
    take = store._take
    monkeypatch.setattr(store, "_take", lambda *arguments: looks.append(arguments) or take(*arguments))

    async def pass_the_loop_on():
        for _ in range(20):
            await asyncio.sleep(0)

    async def scenario():
        first, second = await claimed(store, 2)
        taking = asyncio.create_task(store.take_groups("run", 2))
        await pass_the_loop_on()
        assert len(looks) == 1
        await store.finish_group(first, usable=True)
        await pass_the_loop_on()
        assert len(looks) == 2
        await store.finish_group(second, usable=True)
        return await asyncio.wait_for(taking, 10)

    assert [group.index for group in asyncio.run(scenario())] == [0, 1]


def test_closing_the_store_ends_a_taker(store, monkeypatch):
    monkeypatch.setattr(sqlite_connection, "RECHECK_S", 3600.0)

    async def scenario():
        taking = asyncio.create_task(store.take_groups("run", 1))
        await asyncio.sleep(0)
        await store.close()
        await asyncio.wait_for(taking, 10)

    with pytest.raises(StoreError, match="closed"):
        asyncio.run(scenario())


def test_groups_of_another_process_are_seen_without_being_woken(path, store):
    """Another store object stands for another process: the two share nothing but the file."""
    other = SQLiteStore(path=path)
    looked = threading.Event()
    (claim,) = asyncio.run(claimed(other))

    async def take():
        taking = asyncio.create_task(store.take_groups("run", 1))
        await asyncio.sleep(0)
        looked.set()
        return await taking

    def finish():
        looked.wait()
        asyncio.run(other.finish_group(claim, usable=True))

    thread = threading.Thread(target=finish)
    thread.start()
    assert [group.id for group in asyncio.run(take())] == [claim.group_id]
    thread.join()
    asyncio.run(other.close())


def test_waking_survives_a_loop_that_was_closed_while_it_waited(store):
    loop = asyncio.new_event_loop()
    taking = loop.create_task(store.take_groups("run", 1))
    loop.call_soon(loop.stop)
    loop.run_forever()
    abandoned = [(loop, event) for loop, event in store._changed._listeners]
    taking.cancel()
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    store._changed._listeners.update(abandoned)
    (claim,) = asyncio.run(claimed(store))
    asyncio.run(store.finish_group(claim, usable=True))
    assert len(asyncio.run(store.take_groups("run", 1))) == 1


def test_a_record_finishes_with_a_final_outcome_only(store):
    with pytest.raises(ValueError, match="running"):
        asyncio.run(store.finish_record(RECORD))


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.add_tasks("run", [Task(id="odd", data={"when": object()})]),
        lambda store: store.add_tasks("run", [Task(id="odd", data={}, answer="\ud800")]),
        lambda store: store.add_interaction("run", call("odd", output_ids=(2**31,))),
        lambda store: store.add_interaction("run", call("odd", requested={"x": object()})),
    ],
    ids=["not-json", "surrogate", "token-too-big", "not-json-in-request"],
)
def test_a_value_that_cannot_be_stored_is_named(store, write):
    with pytest.raises(UnstorableError, match=r"odd|tasks of run 'run'"):
        asyncio.run(write(store))
    asyncio.run(store.add_interaction("run", call(0)))


def test_of_writes_that_belong_together_all_are_kept_or_none(store):
    before = asyncio.run(store.tasks("run"))
    good, bad = (Task(id=name, data={"id": name}) for name in ("fine", "half a character: \ud800"))
    with pytest.raises(UnstorableError):
        asyncio.run(store.add_tasks("run", [good, bad]))
    assert asyncio.run(store.tasks("run")) == before


@pytest.mark.parametrize("value", ["\ud800", json.loads("[" * 300 + "]" * 300)], ids=["surrogate", "deep"])
def test_what_the_fast_encoder_refuses_is_kept_all_the_same(store, value):
    odd = call(0, output={"content": value}, requested={"x": value}, tools=({"x": value},))
    asyncio.run(store.add_interaction("run", odd))
    (kept,) = asyncio.run(store.episode("record")).interactions
    assert (kept.output, kept.requested, kept.tools) == ({"content": value}, {"x": value}, ({"x": value},))


def test_odd_bytes_in_an_error_message_do_not_lose_the_record(store):
    failed = attrs.evolve(RECORD, outcome=Outcome.FAILED, reason="OSError", detail="no file caf\udce9.txt")
    assert asyncio.run(store.finish_record(failed))
    assert asyncio.run(store.records("run"))[0].detail == "no file caf\\udce9.txt"


# --- faults of the file ---


def test_processes_that_open_a_new_file_together_all_succeed(path):
    script = "import sys; from pathlib import Path; from agentrl_core.stores.sqlite import SQLiteStore\n"
    script += "sys.stdin.readline(); SQLiteStore(path=Path(sys.argv[1]))"
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", script, path], stdin=subprocess.PIPE))
            for _ in range(4)
        ]
        for process in processes:
            process.stdin.write(b"go\n")
            process.stdin.flush()
        assert [process.wait(60) for process in processes] == [0, 0, 0, 0]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_its_owner_reads_the_file_and_its_log(tmp_path, umask):
    path = tmp_path / "agentrl.db"
    before = os.umask(umask)
    try:
        for mode in (None, 0o644):  # a new file, and one of an earlier version
            if mode is not None:
                path.chmod(mode)
            store = SQLiteStore(path=path)
            asyncio.run(store.add_tasks("run", []) if mode else announce(store))
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
            assert modes == dict.fromkeys(("agentrl.db", "agentrl.db-wal", "agentrl.db-shm"), 0o600)
            asyncio.run(store.close())
    finally:
        os.umask(before)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file/runs/agentrl\.db: cannot create its folder"):
        SQLiteStore(path=tmp_path / "file" / "runs" / "agentrl.db")


def test_a_folder_in_the_place_of_the_file_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"cannot open: unable to open database file; give this user permission"):
        SQLiteStore(path=tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="permission"):
        SQLiteStore(path=tmp_path / "agentrl.db")


def test_a_file_that_is_no_database_is_named(tmp_path):
    path = tmp_path / "agentrl.db"
    path.write_bytes(b"id,query,answer\n" * 100)
    for open_store in (lambda: SQLiteStore(path=path), lambda: SQLiteStore.read(path)):
        with pytest.raises(StoreError, match="not a database; expected a database that agentrl wrote"):
            open_store()
    assert path.read_bytes().startswith(b"id,query")


def test_a_database_of_another_program_is_left_alone(tmp_path):
    path = tmp_path / "agentrl.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE notes (text)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        SQLiteStore(path=path)
    assert path.read_bytes() == before


def test_a_newer_schema_is_refused(path, store):
    asyncio.run(store.close())
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {sqlite_schema.SCHEMA_VERSION + 1}")
    db.close()
    with pytest.raises(StoreError, match=r"newer agentrl-core .* upgrade agentrl-core"):
        SQLiteStore(path=path)


@pytest.fixture
def old_path(tmp_path):
    """Make a file of schema version 1 with one run, record and interaction."""
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as db:
        db.executescript(Path(__file__).with_name("schema_1.sql").read_text(encoding="utf-8"))
    db.close()
    return path


def test_a_file_of_version_1_is_upgraded_when_it_is_opened(old_path):
    for _ in range(2):  # the second time there is nothing left to do
        store = SQLiteStore(path=old_path)
        (old,) = asyncio.run(store.episode("record")).interactions
        assert (old.api, old.upstream, old.output_ids) == ("chat", "", (3,))
        asyncio.run(store.close())
    store = SQLiteStore(path=old_path)
    new = call(1, api="messages", upstream="judge")
    row = SessionRow(
        record_id="record", run_id="run", group_id="group", task_id="t", key_hash=b"k", token_hash=b"t",
        seed_key=(1, 2), policy={}, opened_at=5.0,
    )  # fmt: skip
    asyncio.run(store.add_interaction("run", new))
    asyncio.run(store.add_session(row))
    assert asyncio.run(store.episode("record")).interactions == (old, new)
    assert asyncio.run(store.sessions("run")) == [row]
    asyncio.run(store.close())


def test_a_file_of_version_2_is_upgraded_or_read_as_it_is(tmp_path):
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as db:
        db.executescript(Path(__file__).with_name("schema_1.sql").read_text(encoding="utf-8"))
    db.close()
    asyncio.run(SQLiteStore(path=path).close())
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE records DROP COLUMN score_details")
        db.execute("PRAGMA user_version = 2")
    db.close()
    for opened in (SQLiteStore.read, lambda path: SQLiteStore(path=path), SQLiteStore.read):
        store = opened(path)
        assert asyncio.run(store.episode("record")).record.score_details == {}
        assert asyncio.run(store.sessions("run")) == []
        asyncio.run(store.close())


def test_a_file_of_version_6_has_no_sampling_masks(path, store):
    asyncio.run(store.add_interaction("run", call(0)))
    asyncio.run(store.close())
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE interactions DROP COLUMN kept")
        db.execute("PRAGMA user_version = 6")
    db.close()
    for opened in (SQLiteStore.read, lambda path: SQLiteStore(path=path), SQLiteStore.read):
        found = opened(path)
        assert asyncio.run(found.episode("record")).interactions[0].kept == ()
        asyncio.run(found.close())


def test_a_file_of_version_5_is_upgraded_or_read_as_it_is(path, store):
    asyncio.run(store.add_interaction("run", call(0)))
    asyncio.run(store.finish_record(attrs.evolve(RECORD, outcome=Outcome.FAILED)))
    asyncio.run(store.close())
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE tool_calls")
        db.execute("ALTER TABLE records DROP COLUMN marks")
        db.execute("PRAGMA user_version = 5")
    db.close()
    for opened in (SQLiteStore.read, lambda path: SQLiteStore(path=path), SQLiteStore.read):
        found = opened(path)
        episode = asyncio.run(found.episode("record"))
        assert (len(episode.interactions), episode.tool_calls, episode.record.marks) == (1, (), ())
        (ended,) = asyncio.run(found.unsealed("run", limit=9))
        assert (ended.num_calls, ended.tool_calls) == (1, ())
        assert asyncio.run(found.unsealed("run", limit=9, late=True)) == []
        asyncio.run(found.close())
    found = SQLiteStore(path=path)
    tool_call = ToolCall(id="t", record_id="record", seq=0, name="look", arguments={}, outcome=ToolOutcome.OK)
    asyncio.run(found.add_tool_call("run", tool_call))
    assert asyncio.run(found.episode("record")).tool_calls == (tool_call,)
    asyncio.run(found.close())


def test_a_file_of_version_1_is_read_without_being_changed(old_path):
    before = old_path.read_bytes()
    store = SQLiteStore.read(old_path)
    (old,) = asyncio.run(store.episode("record")).interactions
    assert (old.api, old.upstream) == ("chat", "")
    assert asyncio.run(store.sessions("run")) == []
    asyncio.run(store.close())
    assert old_path.read_bytes() == before


def test_tasks_of_a_file_of_version_1_are_training_tasks_and_others_may_have_their_ids(old_path):
    with contextlib.closing(sqlite3.connect(old_path)) as db:
        values = [("run", name, "{}", f"answer {name}", None, "answer") for name in "ba"]
        db.executemany("INSERT INTO tasks VALUES (?, ?, ?, ?, ?, ?)", values)
        db.commit()
    expected = [Task(id=name, data={}, answer=f"answer {name}", answer_schema="answer") for name in "ba"]
    reader = SQLiteStore.read(old_path)
    assert asyncio.run(reader.tasks("run", task_set="train")) == expected
    assert asyncio.run(reader.tasks("run", task_set="eval")) == []
    asyncio.run(reader.close())
    store = SQLiteStore(path=old_path)
    assert asyncio.run(store.tasks("run")) == expected
    assert asyncio.run(store.episode("record")).record.task_set == "train"
    held_out = Task(id="a", data={}, answer="of the evaluation")
    asyncio.run(store.add_tasks("run", [held_out], task_set="eval"))
    asyncio.run(store.add_tasks("run", [held_out]))  # is there: left as it is
    assert asyncio.run(store.tasks("run", task_set="train")) == expected
    assert asyncio.run(store.tasks("run", task_set="eval")) == [held_out]
    asyncio.run(store.close())


def test_a_run_of_a_file_without_claims_goes_on_where_it_was(old_path):
    """Positions 1 (dropped twice) and 3 (put aside) were kept in the memory of their process."""
    groups = [
        ("taken", 0, "taken", 0),
        ("lost", 1, "dropped", 0),
        ("again", 1, "dropped", 0),
        ("waits", 2, "ready", 0),
        ("void", 3, "aside", 0),
        ("held-out", 0, "dropped", 1),
    ]
    with contextlib.closing(sqlite3.connect(old_path)) as db:
        db.execute("DELETE FROM groups WHERE id <> 'group'")
        db.execute("UPDATE groups SET is_eval = 1, state = 'dropped'")
        db.executemany(
            "INSERT INTO groups (run_id, id, task_id, idx, size, version, is_eval, state) "
            "VALUES ('run', ?, 't', ?, 1, 0, ?, ?)",
            [(name, index, is_eval, state) for name, index, state, is_eval in groups],
        )
        db.execute(
            "INSERT INTO steps (run_id, step, version, groups, records, metrics, voided) "
            "VALUES ('run', 1, 1, '[\"taken\"]', '[]', '{}', 0)"
        )
        db.commit()
    before = old_path.read_bytes()
    reader = SQLiteStore.read(old_path)
    shown = asyncio.run(reader.groups("run"))
    assert [row.state for row in shown if row.id == "taken"] == ["trained"]
    assert asyncio.run(reader.members("run")) == []
    assert asyncio.run(reader.control("run")) == RunControl()
    asyncio.run(reader.close())
    assert old_path.read_bytes() == before

    async def scenario(store):
        assert await store.groups("run") == shown
        assert store._connection.execute("PRAGMA foreign_key_check").fetchall() == []
        await store.void_after("run", 1)
        await store.admit("run", 1)
        member = Member(run_id="run", role="sample")
        await store.join(member)
        admission = Admission(max_head_offpolicyness=0, tasks_per_step=4, requeue=2)
        claims = await store.claim_groups(
            "run", member.id, 9, admission=admission, size=1, version=1, task_at=lambda _: "t"
        )
        assert [(claim.index, claim.tries) for claim in claims] == [(1, 2), (3, 0), (4, 0)]
        await store.add_record(attrs.evolve(RECORD, id="new", group_id=claims[0].group_id), member_id=member.id)
        await store.close()

    asyncio.run(scenario(SQLiteStore(path=old_path)))


def test_what_was_flushed_is_in_the_database_itself(path, store, tmp_path):
    asyncio.run(store.add_interaction("run", call(0)))
    copies = [shutil.copy(path, tmp_path / "before.db")]
    asyncio.run(store.flush())
    copies.append(shutil.copy(path, tmp_path / "after.db"))
    asyncio.run(store.add_interaction("run", call(1)))
    assert stored_ids(path) == ["call-0", "call-1"]
    ids = []
    for copy in map(Path, copies):  # without the write-ahead log
        with contextlib.closing(sqlite3.connect(copy)) as db:
            tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE name = 'interactions'")]
            ids.append([name for (name,) in db.execute("SELECT id FROM interactions")] if tables else [])
    assert ids == [[], ["call-0"]]


def test_a_flush_goes_on_while_another_process_reads(path, store):
    asyncio.run(store.add_interaction("run", call(0)))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM interactions").fetchall()
        asyncio.run(store.add_interaction("run", call(1)))
        asyncio.run(store.flush())
        assert reader.execute("SELECT count(*) FROM interactions").fetchall() == [(1,)]
    assert stored_ids(path) == ["call-0", "call-1"]


def test_a_flush_that_meets_a_lock_is_named_and_the_store_goes_on(path, store, monkeypatch):
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0.0)
    with locked_by_another(path), pytest.raises(StoreError, match=r"cannot flush.* locked"):
        asyncio.run(store.flush())
    asyncio.run(store.flush())
    asyncio.run(store.add_interaction("run", call(0)))
    assert stored_ids(path) == ["call-0"]


@pytest.mark.parametrize(
    ("statement", "read"),
    [
        ("UPDATE runs SET config = '{\"trainer\":'", lambda store: store.runs()),
        ("UPDATE runs SET components = '[1, 2]'", lambda store: store.runs()),
        ("UPDATE records SET outcome = 'nonsense'", lambda store: store.records("run")),
        ("UPDATE interactions SET logprobs = x'00'", lambda store: store.episode("record")),
        ("UPDATE interactions SET messages = '{'", lambda store: store.episode("record")),
        ("UPDATE interactions SET sampling = '{\"unknown\": 1}'", lambda store: store.episode("record")),
    ],
)
def test_a_damaged_row_is_named(path, store, statement, read):
    asyncio.run(store.add_interaction("run", call(0)))
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(statement)
        db.commit()
    with pytest.raises(StoreError, match=r"agentrl\.db: cannot .*: a row is damaged .*continue from a copy"):
        asyncio.run(read(store))


def test_a_damaged_file_is_named(path, store):
    for seq in range(50):
        asyncio.run(store.add_interaction("run", call(seq, prompt_ids=tuple(range(500)))))
    asyncio.run(store.close())
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        asyncio.run(announce(SQLiteStore(path=path)))


def test_reading_what_is_not_there_is_an_error(tmp_path):
    with pytest.raises(StoreError, match="cannot open"):
        SQLiteStore.read(tmp_path / "agentrl.db")
    (tmp_path / "agentrl.db").touch()
    with pytest.raises(StoreError, match="nothing yet"):
        SQLiteStore.read(tmp_path / "agentrl.db")


def test_a_file_removed_while_in_use_stops_the_writes(path, store):
    shutil.move(path, path.with_suffix(".moved"))
    with pytest.raises(StoreError, match="moved or removed"):
        asyncio.run(store.add_interaction("run", call(0)))
    shutil.move(path.with_suffix(".moved"), path)
    asyncio.run(store.add_interaction("run", call(0)))
    assert stored_ids(path) == ["call-0"]


@contextlib.contextmanager
def locked_by_another(path):
    """Hold the file's write lock as another process would; yields what releases it."""
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other.rollback


def test_another_process_s_lock_is_named(path, store, monkeypatch):
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0.0)
    with locked_by_another(path), pytest.raises(StoreError, match="locked; another process"):
        asyncio.run(store.add_interaction("run", call(0)))
    asyncio.run(store.add_interaction("run", call(0)))


@pytest.mark.parametrize("write", ["a single statement", "a transaction"])
def test_a_write_that_waits_for_a_lock_leaves_the_event_loop_to_others(path, store, write):
    async def scenario(release):
        writing = asyncio.ensure_future(
            store.add_interaction("run", call(0))
            if write == "a single statement"
            else store.update_run("run", status="failed")
        )
        seen = [await store.runs() for _ in range(3)]
        await asyncio.sleep(0)
        assert not writing.done()
        release()
        await writing
        return {run.status for runs in seen for run in runs}

    with locked_by_another(path) as release:
        assert asyncio.run(scenario(release)) == {"running"}


def test_a_call_that_waits_for_another_thread_s_leaves_the_event_loop_to_others(store):
    async def scenario():
        with store._lock:
            waiting = asyncio.ensure_future(store.runs())
            for _ in range(3):
                await asyncio.sleep(0)
            assert not waiting.done()
        return await waiting

    assert [run.id for run in asyncio.run(scenario())] == ["run"]


def test_a_row_that_is_there_or_belongs_to_nothing_is_told_in_words(store):
    asyncio.run(store.add_interaction("run", call(0)))
    step = StepRow(run_id="run", step=1, version=1, groups=("group",), records=("record",), metrics={})
    asyncio.run(store.add_step(step))
    unknown = r": cannot .*; its run, group or record is not in this file"
    twice = r": cannot .*; it is in this file already; if another process writes the same run"
    for adding, told in (
        (store.add_record(attrs.evolve(RECORD, id="other", group_id="elsewhere")), unknown),
        (store.add_record(asyncio.run(store.records("run"))[0]), twice),
        (store.add_interaction("run", call(0)), twice),
        (store.add_step(step), twice),
    ):
        with pytest.raises(StoreError, match=told):
            asyncio.run(adding)


def test_a_full_disk_loses_nothing_and_passes(path, store):
    asyncio.run(store.add_interaction("run", call(0)))
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    big = call(1, prompt_ids=tuple(range(5000)))
    with pytest.raises(StoreError, match=r"agentrl\.db: cannot add interaction call-1 .* full; free space"):
        asyncio.run(store.add_interaction("run", big))
    with pytest.raises(StoreError, match="free space"):
        asyncio.run(store.add_tasks("run", [Task(id=str(number), data={"x": "y" * 2000}) for number in range(9)]))
    assert stored_ids(path) == ["call-0"]
    assert asyncio.run(store.tasks("run")) == []
    store._connection.execute("PRAGMA max_page_count = 100000")
    asyncio.run(store.add_interaction("run", big))
    assert stored_ids(path) == ["call-0", "call-1"]


_WRITER = """
import asyncio, itertools, resource, sys
from pathlib import Path
from agentrl_core.errors import StoreError
from agentrl_core.api.claims import Admission
from agentrl_core.api.members import Member
from agentrl_core.api.stores import RunControl, RunRow
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Interaction, Record, ToolCall, ToolOutcome

def call(seq):
    return Interaction(
        id=f"call-{seq}", record_id="record", seq=seq, prompt_ids=tuple(range(300)), output_ids=(4,), logprobs=(-0.5,),
        versions=((0, 1),), messages=({"role": "user", "content": "hi"},), output={"role": "assistant", "content": ""},
    )

async def main():
    store = SQLiteStore(path=Path(sys.argv[1]))
    await store.create_run(RunRow(id="run", created_at=0.0, status="running", config={}, components={}))
    (group,) = await store.add_evaluation("run", "eval", ["task"], version=0, claimable=False)
    await store.add_record(Record(id="record", run_id="run", task_id="task", group_id=group, sample_index=0))
    await BODY(store)

async def for_ever(store):
    for seq in itertools.count():
        await store.add_interaction("run", call(seq))
        shown = ({"type": "text", "text": "x" * 5000},)
        await store.add_tool_call("run", ToolCall(
            id=f"tool-{seq}", record_id="record", seq=seq, name="look", arguments={}, shown=shown,
            outcome=ToolOutcome.OK,
        ))
        print(f"call-{seq}", flush=True)

async def into_a_limit(store):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))
    for seq in range(1000):
        try:
            await store.add_interaction("run", call(seq))
        except StoreError as error:
            print(error)
            break
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    await store.add_interaction("run", call(seq))
    print(seq)
    await store.close()

asyncio.run(main())
"""


def test_a_write_beyond_the_file_size_limit_loses_nothing_and_passes(path):
    done = subprocess.run(
        [sys.executable, "-c", _WRITER.replace("BODY", "into_a_limit"), path],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    message, last = done.stdout.splitlines()
    assert str(path) in message
    assert "nothing that was stored before is lost" in message
    assert int(last) > 10
    assert stored_ids(path) == [f"call-{seq}" for seq in range(int(last) + 1)]


@pytest.mark.slow
def test_what_a_killed_process_wrote_is_there(path):
    script = [sys.executable, "-c", _WRITER.replace("BODY", "for_ever"), path]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as process:
        printed = [process.stdout.readline().strip() for _ in range(3000)]
        process.send_signal(signal.SIGKILL)
        printed += process.stdout.read().split()  # the last line may be cut short
    printed = printed if printed[-1] == f"call-{len(printed) - 1}" else printed[:-1]
    assert stored_ids(path)[: len(printed)] == printed
    store = SQLiteStore(path=path)
    tool_calls = asyncio.run(store.episode("record")).tool_calls
    assert [item.id for item in tool_calls][: len(printed)] == [f"tool-{seq}" for seq in range(len(printed))]
    assert all(len(item.shown[0]["text"]) == 5000 for item in tool_calls)
    assert asyncio.run(store.void_after("run", 0)) == 0
    assert asyncio.run(store.records("run"))[0].outcome is Outcome.CANCELLED
    asyncio.run(store.close())
