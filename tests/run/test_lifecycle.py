"""Runs of several folders with one name in one store: each writes its own row alone."""

import asyncio
import json
import logging
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from agentrl_core import config as configs
from agentrl_core.api.members import Member
from agentrl_core.api.stores import StepRow
from agentrl_core.errors import LostError, MemberError, RunError, StoreError
from agentrl_core.run import lifecycle
from agentrl_core.run.directory import RunDirectory
from agentrl_core.run.lifecycle import carry_out
from agentrl_core.run.shared_start import announce, known_run, rewind
from agentrl_core.stores.sqlite import SQLiteStore

STEP = StepRow(run_id="baseline", step=1, version=1, groups=(), records=(), metrics={})


@pytest.fixture
def components(tmp_path):
    """Components of a run whose store is a file that several folders share."""
    return SimpleNamespace(
        config=configs.parse({"data": "a.jsonl", "workflow": "x"}),
        used={},
        registry=SimpleNamespace(hooks=SimpleNamespace(notify=lambda *_, **__: None), modules={"someones_package"}),
        build=lambda *_, **__: SQLiteStore(path=tmp_path / "shared.db"),
        close=lambda: None,
    )


@pytest.fixture
def folders(tmp_path, components, monkeypatch):
    """Folders of two projects, with a run of the same name each."""
    monkeypatch.setattr(lifecycle, "_trackers", lambda *_: [])
    made = [RunDirectory.create(tmp_path / project, "baseline") for project in ("a", "b")]
    for directory in made:
        directory.write_snapshot({}, tmp_path)
    return made


def row(tmp_path):
    async def read():
        store = SQLiteStore.read(tmp_path / "shared.db")
        (found,) = await store.runs()
        steps = await store.steps("baseline")
        await store.close()
        return found.status, found.error, steps

    return asyncio.run(read())


def begin(components, directory):
    def work(store, *_):
        asyncio.run(announce(store, components, directory.name, identity=directory.identity))
        asyncio.run(store.add_step(STEP))

    return work


def go_on(components, directory):
    def work(store, *_):
        asyncio.run(known_run(store, components, directory))
        return asyncio.run(rewind(store, directory.name, 0))

    return work


@pytest.mark.parametrize("start", [begin, go_on])
@pytest.mark.parametrize("checked", [True, False])
def test_a_run_of_another_folder_stays_as_it_is(components, folders, tmp_path, monkeypatch, start, checked):
    first, second = folders

    def work(store, *others):
        begin(components, first)(store, *others)
        if not checked:  # as if the first run had begun right after the check

            async def unchecked(*_):
                pass

            monkeypatch.setattr(lifecycle, "check_identity", unchecked)
        with pytest.raises(StoreError, match=r"another run 'baseline'|'baseline' exists already"):
            carry_out(components, second, start(components, second))
        assert row(tmp_path) == ("running", "", [STEP])

    carry_out(components, first, work)
    assert row(tmp_path) == ("finished", "", [STEP])


@pytest.mark.parametrize("error", [None, StoreError("the disk is full"), KeyboardInterrupt()])
def test_the_members_leave_when_the_store_has_the_final_status(components, folders, tmp_path, error):
    seen = []

    def work(store, events, leaving):
        begin(components, folders[0])(store, events, leaving)
        leaving.callback(lambda: seen.append(row(tmp_path)[0]))
        if error is not None:
            raise error

    with nullcontext() if error is None else pytest.raises(type(error)):
        carry_out(components, folders[0], work)
    assert seen == [{None: "finished", StoreError: "failed"}.get(error and type(error), "interrupted")]


@pytest.mark.parametrize("error", [None, StoreError("a misleading one"), MemberError("refused"), KeyboardInterrupt()])
@pytest.mark.parametrize("has_joined", [True, False])
def test_a_trainer_that_was_lost_or_never_let_in_leaves_the_status_as_it_is(
    components, folders, tmp_path, error, has_joined
):
    trainer = Member(run_id="baseline", role="train")

    def work(store, events, leaving):
        begin(components, folders[0])(store, events, leaving)
        if has_joined:
            asyncio.run(store.join(trainer))
            asyncio.run(store.declare_lost(trainer.id, beats=0))
        if error is not None:
            raise error

    with pytest.raises(MemberError if error is None else type(error)):
        carry_out(components, folders[0], work, member_id=trainer.id)
    assert row(tmp_path)[:2] == ("running", "")


def test_an_error_about_this_process_alone_is_no_end_of_the_run(components, folders, tmp_path):
    trainer = Member(run_id="baseline", role="train")

    def work(store, events, leaving):
        begin(components, folders[0])(store, events, leaving)
        asyncio.run(store.join(trainer))  # and the store does not know yet that it is lost
        raise LostError("no heartbeat reached the store")

    with pytest.raises(LostError):
        carry_out(components, folders[0], work, member_id=trainer.id)
    assert row(tmp_path)[:2] == ("running", "")


@pytest.mark.parametrize("resume", ["", "agentrl train config.yaml --name baseline trainer.steps=12"])
def test_an_interrupted_run_names_the_command_that_resumes_it(components, folders, resume):
    def work(store, *others):
        begin(components, folders[0])(store, *others)
        raise KeyboardInterrupt("after step 1, which is saved")

    with pytest.raises(KeyboardInterrupt, match=resume or "agentrl runs resume"):
        carry_out(components, folders[0], work, resume=resume)


def test_a_folder_goes_on_with_its_own_run(components, folders, tmp_path):
    carry_out(components, folders[0], begin(components, folders[0]))
    identity = folders[0].identity
    folders[0].write_snapshot({"seed": 1}, tmp_path)
    assert folders[0].identity == identity != folders[1].identity
    carry_out(components, folders[0], go_on(components, folders[0]))
    assert [step.voided for step in row(tmp_path)[2]] == [True]


def test_a_run_that_began_before_there_were_identities_goes_on(components, folders, tmp_path):
    kept = json.loads(folders[0].snapshot.read_text())
    del kept["identity"]
    folders[0].snapshot.write_text(json.dumps(kept))
    carry_out(components, folders[0], begin(components, folders[0]))
    folders[0].write_snapshot({}, tmp_path)
    carry_out(components, folders[0], go_on(components, folders[0]))
    assert row(tmp_path)[0] == "finished"
    with pytest.raises(StoreError, match="another run 'baseline'"):
        carry_out(components, folders[1], go_on(components, folders[1]))


def test_a_run_that_fails_says_so_and_a_finished_one_stays_finished(components, folders, tmp_path):
    def fail(*_):
        raise ValueError("broken")

    def begin_and_fail(store, *others):
        begin(components, folders[0])(store, *others)
        fail(store, *others)

    with pytest.raises(RunError, match="broken"):
        carry_out(components, folders[0], begin_and_fail)
    assert row(tmp_path)[:2] == ("failed", "broken")
    carry_out(components, folders[0], go_on(components, folders[0]))
    with pytest.raises(RunError, match="broken"):
        carry_out(components, folders[0], fail)
    assert row(tmp_path)[:2] == ("finished", "")


def test_a_runs_log_has_what_its_packages_log(components, folders):
    start = begin(components, folders[0])

    def work(store, *_):
        start(store)
        logging.getLogger("someones_package.part").warning("of a package")

    carry_out(components, folders[0], work)
    assert folders[0].log("run").read_text(encoding="utf-8").count("someones_package.part: of a package\n") == 1
