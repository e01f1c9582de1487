"""A run in MongoDB is sealed and verified as one in SQLite is."""

import asyncio

import pytest

from agentrl_core.cli.verify_facts import Verifier
from agentrl_mongo.seals import unsealed_records
from agentrl_mongo.store import MongoStore
from agentrl_testing.sealed_runs import SealedRun

RUN = "calm-otter"


@pytest.fixture(params=["motor", "pymongo"])
def open_store(request, url, database):
    return lambda kind=MongoStore: kind(url=url, database=database, driver=request.param)


@pytest.fixture
def run(open_store, tmp_path):
    """A finished run of three steps, the last of which was made twice."""
    store = open_store()
    made = SealedRun(store, tmp_path / RUN)
    made.train(save=True)
    made.train()
    made.train()
    made.resume(2)
    made.train()
    made.head = made.finish()
    yield made
    asyncio.run(store.close())


@pytest.fixture
def check(open_store, run):
    def check(head=""):
        reader = open_store(MongoStore.read)
        try:
            (row,) = asyncio.run(reader.runs())
            return Verifier(reader, row, run.directory).check(head)
        finally:
            asyncio.run(reader.close())

    return check


def test_an_untouched_run_is_intact(run, check):
    found = check(run.head)
    assert (found.findings, found.notes) == ([], [])
    assert (found.num_records, found.num_calls, found.num_tool_calls) == (6, 12, 6)


CHANGES = {
    "a reward": ("records", {"sample_index": 1}, {"reward": 7.0}, "record "),
    "a reply": ("interactions", {"seq": 1}, {"output.content": "Dine."}, "call [1] "),
    "tokens": ("arrays", {}, {"output_ids": b"\0" * 8}, "call ["),
    "tools": ("tools", {}, {"value": []}, "call ["),
    "a tool's result": ("tool_calls", {}, {"shown.0.text": "A field."}, "tool call [0] "),
    "a tool call's arguments": ("tool_calls", {}, {"arguments.field": "b4"}, "tool call [0] "),
    "marks": ("records", {}, {"marks": []}, "record "),
    "a call's digest": ("interactions", {}, {"digest": "0" * 32}, "call ["),
    "a group": ("groups", {}, {"index": 77}, "record "),
    "a metric": ("steps", {"step": 2}, {"metrics.reward/mean": 1.0}, "step 2 (version 2)"),
    "a step's mark": ("steps", {"step": 3, "voided": True}, {"voided": False, "step": 9}, "step 3 (version 3)"),
    "a version": ("versions", {"version": 1}, {"step": 0}, "version 1"),
    "a task": ("tasks", {"id": "task-0"}, {"answer": "b"}, "task of set train task-0"),
    "the config": ("runs", {}, {"config.seed": 4}, "run calm-otter"),
    "a seal": ("seals", {"number": 1}, {"body": "{}"}, "seal 1"),
}


@pytest.mark.parametrize("open_store", ["pymongo"], indirect=True)
@pytest.mark.parametrize(("collection", "wanted", "fields", "word"), CHANGES.values(), ids=CHANGES)
def test_a_changed_value_is_named(run, check, raw, collection, wanted, fields, word):
    assert raw[collection].update_one(wanted, {"$set": fields}).modified_count == 1
    assert any(word in str(finding) for finding in check().findings), check().findings


@pytest.mark.parametrize("open_store", ["pymongo"], indirect=True)
@pytest.mark.parametrize(
    "collection", ["records", "interactions", "tool_calls", "steps", "versions", "seals", "groups"]
)
def test_a_removed_document_is_named(run, check, raw, collection):
    assert raw[collection].delete_one({}).deleted_count == 1
    assert any(finding.change == "removed" for finding in check().findings)


@pytest.mark.parametrize("open_store", ["pymongo"], indirect=True)
def test_the_query_of_unsealed_records_follows_an_index(run, raw):
    wanted, _ = unsealed_records(RUN)
    assert "IXSCAN" in str(raw["records"].find(wanted).explain()["queryPlanner"]["winningPlan"])
