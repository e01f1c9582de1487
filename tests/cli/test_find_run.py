"""Runs that share a database, and stores that fail while a record is searched."""

import asyncio
import shutil

import pytest
from tests.cli.conftest import fill

from agentrl_core.cli.find_run import open_episode
from agentrl_core.errors import StoreError
from agentrl_core.stores.sqlite import SQLiteStore


@pytest.fixture
def shared(make_run, tmp_path):
    """Two folders of runs; the database of each has both runs."""
    folder = make_run("calm-otter")
    store = SQLiteStore(path=folder / "agentrl.db")
    asyncio.run(fill(store, "keen-wren", created_at=2.0, reward=0.5))
    shutil.copytree(folder, tmp_path / "runs" / "keen-wren")
    return tmp_path / "runs"


@pytest.mark.parametrize("run", ["calm-otter", "keen-wren"])
def test_a_record_is_found_in_its_own_run(shared, run):
    with open_episode(f"{run}-aaaa", None, shared) as found:
        assert (found.row.id, found.place.directory.name, found.episode.record.run_id) == (run, run, run)


def test_a_record_of_another_run_of_the_database_is_refused(agentrl, shared):
    for command in ("show", "replay", "lineage"):
        refused = agentrl("trace", command, "keen-wren-aaaa", "--run", "calm-otter")
        assert refused.code == 2
        assert "no record 'keen-wren-aaaa' in run calm-otter" in refused.err


def test_a_folder_that_names_none_of_several_runs_is_refused(agentrl, shared):
    (shared / "keen-wren").rename(shared / "renamed")
    refused = agentrl("runs", "show", "renamed")
    assert refused.code == 2
    assert "none of its 2 runs is called 'renamed'" in refused.err


def test_a_renamed_folder_with_a_run_of_its_own_is_read(agentrl, make_run):
    folder = make_run("calm-otter")
    folder.rename(folder.with_name("renamed"))
    assert agentrl("runs", "show", "renamed").out.startswith("run calm-otter")


def test_a_store_that_fails_does_not_end_the_search(agentrl, make_run, monkeypatch):
    make_run("calm-otter")
    make_run("keen-wren")
    read = SQLiteStore.episode

    async def episode(self, record_id):
        if "keen-wren" in self.location:
            raise StoreError("keen-wren is damaged")
        return await read(self, record_id)

    monkeypatch.setattr(SQLiteStore, "episode", episode)
    assert agentrl("trace", "show", "calm-otter-aaaa").code == 0
    missing = agentrl("trace", "show", "nothing")
    assert missing.code == 2
    assert "keen-wren is damaged" in missing.err
