"""`trace verify` names whatever was changed, removed or added in a sealed run, and nothing in one that was not."""

import asyncio
import json
import shutil
import sqlite3
import struct

import attrs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from agentrl_core.api.audit import Seal, call_digest, digested, step_digest
from agentrl_core.api.stores import SealRow
from agentrl_core.cli.verify_facts import Verifier
from agentrl_core.errors import StoreError
from agentrl_core.run.directory import RunDirectory
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.stores.sqlite_reading import SQLiteReading
from agentrl_core.types import Interaction, ToolCall, ToolOutcome
from agentrl_core.weights.manifest import write_manifest
from agentrl_testing.sealed_runs import SealedRun

OPERATIONAL = {
    "runs": {
        "id",
        "sampling_closed",
        "admitted_steps",
        "replaced",
        "next_index",
        "wanted",
        "limits",
        "cancel",
    },
    "groups": {"run_id", "state", "member_id", "tries", "takeovers"},
    "records": {"sealed_calls"},
    "interactions": {"run_id"},
    "versions": {"run_id"},
    "tasks": {"run_id"},
    "steps": {"position"},
    "tools": set(),
    "tool_calls": {"run_id"},
    "seals": {"run_id"},
}
"""Table -> columns that change while a run goes on, or that repeat what another column says."""


@pytest.fixture(scope="module")
def sealed(tmp_path_factory):
    """The folder of a finished run of three steps, the last of which was made twice; do not write into it."""
    folder = tmp_path_factory.mktemp("sealed") / "runs" / "calm-otter"
    store = SQLiteStore(path=folder / "agentrl.db")
    run = SealedRun(store, folder)
    run.train(save=True)
    run.train()
    run.train()
    run.resume(2)
    run.train(save=True)
    run.head = run.finish()
    asyncio.run(store.close())
    return run


@pytest.fixture
def copy(sealed, tmp_path):
    """A copy of that run."""
    return shutil.copytree(sealed.directory.path, tmp_path / "runs" / "calm-otter")


def test_only_the_tokens_of_live_steps_count_as_trained(copy):
    async def tokens():
        store = SQLiteStore.read(copy / "agentrl.db")
        live = {name for step in await store.steps("calm-otter") if not step.voided for name in step.records}
        found = {True: 0, False: 0}
        for record in await store.records("calm-otter"):
            episode = await store.episode(record.id)
            found[record.id in live] += sum(len(item.output_ids) for item in episode.interactions if item.trainable)
        await store.close()
        return found

    with sqlite3.connect(copy / "agentrl.db") as db:
        db.execute("UPDATE steps SET voided = 1 WHERE step = 1")
    db.close()
    expected, found = asyncio.run(tokens()), check(copy)
    assert min(expected.values()) > 0
    assert (found.fidelity.trained, found.untrained.trained) == (expected[True], expected[False])


def test_records_are_read_in_batches(copy, monkeypatch):
    asked = []
    real = SQLiteReading.episodes

    async def episodes(self, record_ids):
        asked.append(len(record_ids))
        return await real(self, record_ids)

    monkeypatch.setattr(SQLiteReading, "episodes", episodes)
    found = check(copy)
    assert found.intact
    assert sum(asked) == found.num_episodes
    assert len(asked) == -(-found.num_episodes // 16)


def check(folder, head=""):
    store = SQLiteStore.read(folder / "agentrl.db")
    try:
        (row,) = asyncio.run(store.runs())
        return Verifier(store, row, RunDirectory(folder)).check(head)
    finally:
        asyncio.run(store.close())


def change(folder, *statements):
    with sqlite3.connect(folder / "agentrl.db") as db:
        for statement in statements:
            assert db.execute(statement).rowcount, statement
    db.close()


def named(found, *words):
    return any(all(word in str(finding) for word in words) for finding in found.findings)


def test_an_untouched_run_is_intact(sealed, agentrl):
    found = check(sealed.directory.path, sealed.head)
    assert found.intact, found.findings
    assert not found.notes
    assert (found.num_records, found.num_calls, found.num_tool_calls) == (6, 12, 6)
    assert agentrl("trace", "verify", str(sealed.directory.path), "--head", sealed.head).code == 0
    shown = agentrl("runs", "show", str(sealed.directory.path))
    assert f"head {sealed.head}" in shown.out


@st.composite
def changes(draw, path):
    """Draw a table, a row of it, a column, and another value of the column."""
    with sqlite3.connect(path) as db:
        table = draw(st.sampled_from(sorted(OPERATIONAL)))
        columns = [name for _, name, *_ in db.execute(f"PRAGMA table_info({table})") if name not in OPERATIONAL[table]]
        used = "WHERE id IN (SELECT task_id FROM records)" if table == "tasks" else ""
        rowid, *_ = draw(st.sampled_from(db.execute(f"SELECT rowid FROM {table} {used}").fetchall()))
        column = draw(st.sampled_from(columns))
        (value,) = db.execute(f"SELECT {column} FROM {table} WHERE rowid = ?", (rowid,)).fetchone()
    db.close()
    return table, rowid, column, value, draw(others(value))


def others(value):
    match value:
        case None:
            return st.just("x")
        case int():
            return st.integers(0, 9).filter(lambda other: other != value)
        case float():
            return st.floats(-9, 9).filter(lambda other: other != value)
        case bytes():
            flips = st.tuples(st.integers(0, max(0, len(value) - 1)), st.integers(1, 255))
            return flips.map(lambda flip: bytes(b ^ (flip[1] * (at == flip[0])) for at, b in enumerate(value)))
    place, sign = st.integers(0, max(0, len(value) - 1)), st.characters(min_codepoint=32, max_codepoint=126)
    return st.tuples(place, sign).map(lambda edit: value[: edit[0]] + edit[1] + value[edit[0] + 1 :])


def same(old, new):
    """Whether two values of a column mean the same."""
    try:
        return old == new or json.dumps(json.loads(old)) == json.dumps(json.loads(new))
    except (TypeError, ValueError):
        return False


def names_of(db, table, rowid):
    """Return words of which a finding must have one, if this row is changed."""
    names = [name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")]
    row = dict(zip(names, db.execute(f"SELECT * FROM {table} WHERE rowid = ?", (rowid,)).fetchone(), strict=True))
    if table == "groups":
        found = db.execute("SELECT id FROM records WHERE group_id = ?", (row["id"],))
        return [f"record {name}" for (name,) in found]
    forms = {
        "runs": ["run {id}"],
        "tasks": ["task of set {task_set} {id}", "tasks of set train"],
        "records": ["record {id}"],
        "interactions": ["record {record_id}"],
        "tools": ["record "],
        "tool_calls": ["record {record_id}"],
        "steps": ["step {step} (version {version})", "the steps"],
        "versions": ["version {version}", "the versions"],
        "seals": ["seal {number}", "the seals"],
    }
    return [form.format(**row) for form in forms[table]]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_value_is_named(sealed, tmp_path_factory, data):
    path = sealed.directory.database
    table, rowid, column, old, new = data.draw(changes(path))
    assume(not same(old, new))
    if column in ("trainable", "is_eval", "voided"):
        new = 1 - old
    folder = shutil.copytree(sealed.directory.path, tmp_path_factory.mktemp("changed") / "calm-otter")
    with sqlite3.connect(folder / "agentrl.db") as db:
        words = names_of(db, table, rowid)
        try:
            db.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (new, rowid))
        except sqlite3.IntegrityError:
            assume(False)
    db.close()
    try:
        found = check(folder)
        assert any(named(found, word) for word in words), (table, column, old, new, found.findings)
    except StoreError:  # the command ends with it
        if table != "runs":
            raise
    finally:
        shutil.rmtree(folder.parent)


@pytest.mark.parametrize(
    ("table", "word"),
    [("tasks", "task of set train task-0"), ("groups", "group"), ("records", "record"), ("interactions", "call [0]"),
     ("tool_calls", "tool call [0]"),
     ("steps", "step 1 (version 1)"), ("versions", "version 0"), ("seals", "seal 0")],
)  # fmt: skip
def test_a_removed_row_is_named(copy, table, word):
    change(copy, f"DELETE FROM {table} WHERE rowid = (SELECT min(rowid) FROM {table})")
    found = check(copy)
    assert any(item.change == "removed" and word in item.what for item in found.findings), found.findings


def test_added_rows_are_named(copy):
    change(
        copy,
        "INSERT INTO records SELECT 'new', run_id, task_id, group_id, 7, attempt, is_eval, outcome, reason, detail, "
        "reward, rewards, score, score_parts, started_at, finished_at, score_details, task_set, 0, marks "
        "FROM records LIMIT 1",
        "INSERT INTO versions SELECT run_id, 99, step, published_at, voided FROM versions LIMIT 1",
        "INSERT INTO steps SELECT 99, run_id, 99, 99, groups, records, metrics, voided FROM steps LIMIT 1",
    )
    found = check(copy)
    for word in ("record new", "version 99", "step 99 (version 99)"):
        assert any(item.change == "added" and word == item.what for item in found.findings), (word, found.findings)


def test_a_call_that_was_added_to_a_sealed_record_is_named(copy):
    store = SQLiteStore(path=copy / "agentrl.db")
    record = asyncio.run(store.records("calm-otter"))[0].id
    call = Interaction(
        id="late",
        record_id=record,
        seq=2,
        prompt_ids=(),
        output_ids=(),
        logprobs=(),
        versions=(),
        messages=(),
        output={},
    )
    asyncio.run(store.add_interaction("calm-otter", digested(call)))
    asyncio.run(store.close())
    assert named(check(copy), f"call [2] late of record {record}: added")


def test_a_tool_call_that_was_added_to_a_sealed_record_is_named(copy):
    change(
        copy,
        "INSERT INTO tool_calls SELECT run_id, 'new', record_id, 1, digest, call_id, name, server, tool, isolation, "
        "outcome, error, attempts, middleware, started_at, finished_at, arguments, sent, shown, raw "
        "FROM tool_calls LIMIT 1",
    )
    assert any(item.change == "added" and "tool call [1] new" in item.what for item in check(copy).findings)


def test_a_call_that_is_changed_with_its_digest_is_named(copy):
    """Whoever knows the canonical form can write a fitting digest into the row, but not into the seals."""
    store = SQLiteStore(path=copy / "agentrl.db")
    record = asyncio.run(store.records("calm-otter"))[0].id
    call = asyncio.run(store.episode(record)).interactions[1]
    tokens = (9, *call.output_ids[1:])
    digest = call_digest(attrs.evolve(call, output_ids=tokens))
    asyncio.run(store.close())
    with sqlite3.connect(copy / "agentrl.db") as db:
        blob = struct.pack("<2i", *tokens)
        db.execute("UPDATE interactions SET output_ids = ?, digest = ? WHERE id = ?", (blob, digest, call.id))
    db.close()
    assert named(check(copy), f"call [1] {call.id} of record {record}: changed")


def test_seals_in_another_order_are_named(copy):
    change(
        copy,
        "UPDATE seals SET number = 99 WHERE number = 1",
        "UPDATE seals SET number = 1 WHERE number = 2",
        "UPDATE seals SET number = 2 WHERE number = 99",
    )
    found = check(copy)
    assert named(found, "seal 1: changed", "written as seal 2")
    assert named(found, "seal 2: changed", "written as seal 1")


def test_a_single_seal_that_was_written_anew_is_named(copy):
    """Its own digest fits, but the next seal names the old one."""
    store = SQLiteStore(path=copy / "agentrl.db")
    rows = asyncio.run(store.seals("calm-otter"))
    asyncio.run(store.close())
    made = attrs.evolve(Seal.of(rows[2]), sealed_at=1.0).row()
    with sqlite3.connect(copy / "agentrl.db") as db:
        db.execute("UPDATE seals SET body = ?, digest = ? WHERE number = 2", (made.body, made.digest))
    db.close()
    assert named(check(copy), "seal 3: changed", "does not follow")


def test_a_step_that_was_copied_is_named(copy):
    change(
        copy,
        "INSERT INTO steps SELECT 99, run_id, step, version, groups, records, metrics, voided FROM steps WHERE voided",
    )
    assert named(check(copy), "a step: added")


def test_a_chain_that_lost_its_end_is_named(copy):
    change(copy, "DELETE FROM seals WHERE number = (SELECT max(number) FROM seals)")
    assert named(check(copy), "the last seals: removed")
    change(copy, "DELETE FROM seals")
    assert named(check(copy), "all seals: removed")


@pytest.mark.parametrize(("status", "last"), [("interrupted", 5), ("running", 2)])
def test_a_chain_that_lost_its_last_seals_is_named_without_the_head(copy, status, last):
    """A run that was killed has no end, but its records are marked as sealed."""
    change(copy, f"UPDATE runs SET status = '{status}'", f"DELETE FROM seals WHERE number > {last}")
    assert named(check(copy), "the last seals: removed")


def test_files_that_no_manifest_names_are_named(copy):
    (copy / "checkpoints/step-3/pytorch_model.bin").write_bytes(b"other weights")
    assert named(check(copy), "file pytorch_model.bin of checkpoint step-3: added", "a loader may prefer it")


def test_a_missing_newest_checkpoint_is_named(copy):
    shutil.rmtree(copy / "checkpoints/step-1")  # as the run itself removes old ones
    assert check(copy).intact
    shutil.rmtree(copy / "checkpoints/step-3")
    assert named(check(copy), "checkpoint step-3: removed")


@pytest.mark.parametrize(
    ("file", "change"),
    [("model.safetensors", "changed"), ("chat_template.jinja", "removed"), ("pytorch_model.bin", "added")],
)
def test_another_policy_before_training_is_named(copy, file, change):
    path = copy / "model" / file
    path.unlink() if change == "removed" else path.write_bytes(b"another")
    assert named(check(copy), f"file of the policy before training, {file}: {change}")


def test_a_policy_that_is_gone_is_noted(copy):
    shutil.rmtree(copy / "model")
    found = check(copy)
    assert found.intact
    assert any("the policy before training was not compared" in note for note in found.notes)


def test_a_damaged_seal_does_not_keep_a_run_from_going_on(tmp_path, caplog):
    folder = tmp_path / "runs" / "calm-otter"
    run = SealedRun(SQLiteStore(path=folder / "agentrl.db"), folder)
    run.train(save=True)
    change(folder, "UPDATE seals SET body = 'no seal' WHERE number = 1")
    run.resume(1)
    assert "seal 1 of run 'calm-otter' is damaged" in caplog.text
    run.train()
    run.finish()
    asyncio.run(run.store.close())
    found = check(folder)
    assert named(found, "seal 1: changed")
    assert not any(word in str(item) for item in found.findings for word in ("step", "record", "task", "version"))


def test_a_chain_that_was_written_anew_is_found_by_its_head(sealed, copy, agentrl):
    """Someone changes a step and computes every seal again: only a head that was kept elsewhere tells."""
    change(copy, "UPDATE steps SET metrics = replace(metrics, '0.2', '0.9') WHERE step = 2")
    store = SQLiteStore(path=copy / "agentrl.db")
    digests = {(row.step, row.version): step_digest(row) for row in asyncio.run(store.steps("calm-otter"))}
    rows, previous = [], ""
    for row in asyncio.run(store.seals("calm-otter")):
        seal = Seal.of(row)
        steps = [(step, version, digests[step, version], voided) for step, version, _, voided in seal.steps]
        rows.append(attrs.evolve(seal, steps=steps, previous=previous).row())
        previous = rows[-1].digest
    asyncio.run(store.close())
    with sqlite3.connect(copy / "agentrl.db") as db:
        db.executemany(
            "UPDATE seals SET body = ?, digest = ? WHERE number = ?", [(r.body, r.digest, r.number) for r in rows]
        )
    db.close()
    assert check(copy).intact
    assert named(check(copy, sealed.head), sealed.head)
    result = agentrl("trace", "verify", str(copy), "--head", sealed.head)
    assert (result.code, "CHANGED    the chain" in result.out) == (1, True)


@pytest.mark.parametrize(
    ("folder", "name"), [("checkpoints/step-1", "checkpoint step-1"), ("weights/version-1", "weights of version 1")]
)
def test_damaged_and_exchanged_weights_are_named(copy, folder, name):
    weights = copy / folder / "model.safetensors"
    weights.write_bytes(b"x" * 64)
    assert named(check(copy), f"{name}: changed", "model.safetensors")
    write_manifest(weights.parent, version=1, step=1)
    assert named(check(copy), f"{name}: changed", "sealed")
    shutil.rmtree(weights.parent)  # as the run does with old ones
    assert check(copy).intact


def test_a_killed_run_has_unsealed_records_and_no_fault(tmp_path):
    folder = tmp_path / "calm-otter"
    store = SQLiteStore(path=folder / "agentrl.db")
    run = SealedRun(store, folder)
    run.train()
    run.train(seal=False)
    found = check(folder)
    assert found.intact
    assert any("not sealed: record" in note for note in found.notes)
    assert any("the chain has no end" in note for note in found.notes)
    run.resume(1)
    run.train()
    run.finish()
    asyncio.run(store.close())
    found = check(folder)
    assert (found.intact, found.notes) == (True, []), found.findings


def test_calls_that_come_after_the_seal_of_a_cancelled_record_are_sealed_at_the_end(tmp_path):
    folder = tmp_path / "calm-otter"
    store = SQLiteStore(path=folder / "agentrl.db")
    run = SealedRun(store, folder)
    run.train()
    record = asyncio.run(store.records(run.id))[0].id
    call = Interaction(
        id="late",
        record_id=record,
        seq=2,
        prompt_ids=(),
        output_ids=(),
        logprobs=(),
        versions=(),
        messages=(),
        output={},
    )
    asyncio.run(store.add_interaction(run.id, digested(call)))
    tool_call = ToolCall(id="later", record_id=record, seq=1, name="look", arguments={}, outcome=ToolOutcome.CANCELLED)
    asyncio.run(store.add_tool_call(run.id, digested(tool_call)))
    notes = " ".join(check(folder).notes)
    assert "call [2] late" in notes
    assert "tool call [1] later" in notes
    run.finish()
    asyncio.run(store.close())
    found = check(folder)
    assert (found.intact, found.notes, found.num_calls, found.num_tool_calls) == (True, [], 5, 3)


def test_many_records_are_spread_over_several_seals(tmp_path, monkeypatch):
    monkeypatch.setattr("agentrl_core.run.audit._RECORDS_PER_SEAL", 1)
    store = SQLiteStore(path=tmp_path / "calm-otter" / "agentrl.db")
    run = SealedRun(store, tmp_path / "calm-otter")
    run.train()
    run.finish()
    kinds = [Seal.of(row).kind for row in asyncio.run(store.seals(run.id))]
    asyncio.run(store.close())
    assert kinds == ["start", "records", "records", "step", "end"]
    assert check(tmp_path / "calm-otter").intact


def test_a_run_of_an_earlier_version_is_said_to_have_no_seals(make_run, agentrl):
    make_run("calm-otter")
    result = agentrl("trace", "verify", "calm-otter")
    assert result.code == 0
    assert "there are no seals" in result.out


def test_a_second_trainer_cannot_seal_the_same_run(tmp_path):
    store = SQLiteStore(path=tmp_path / "calm-otter" / "agentrl.db")
    run = SealedRun(store, tmp_path / "calm-otter")
    with pytest.raises(StoreError, match="another process"):
        asyncio.run(store.add_seal(SealRow(run_id=run.id, number=0, body="{}", digest=""), records={}))
    asyncio.run(store.close())
