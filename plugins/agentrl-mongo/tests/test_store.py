"""What a server can do to a run: long calls, lost connections, kills, several takers; and what Compass shows."""

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading

import attrs
import pymongo
import pytest

from agentrl_core.api.stores import RunRow, SessionRow, StepRow
from agentrl_core.errors import StoreError, UnstorableError
from agentrl_core.types import Interaction, Outcome, Record, Task
from agentrl_mongo import groups, queries
from agentrl_mongo.store import MongoStore

RUN = RunRow(id="calm-otter", created_at=1.0, status="running", config={"seed": 0}, components={})
RECORD = Record(id="record", run_id=RUN.id, task_id="t", group_id="g", sample_index=0)


def call(seq=0, **fields):
    default = {
        "prompt_ids": (1, 2),
        "output_ids": (3,),
        "logprobs": (-0.5,),
        "versions": ((0, 1),),
        "messages": ({"role": "user", "content": "hi"},),
        "output": {"role": "assistant", "content": "ho"},
    }
    return Interaction(id=f"chatcmpl-{seq}", record_id="record", seq=seq, **default | fields)


async def announce(store):
    await store.create_run(RUN)
    await store.add_group(RUN.id, "g", "t", index=0, size=1, version=0)
    await store.add_record(RECORD)


@pytest.fixture(params=["motor", "pymongo"])
def driver(request):
    return request.param


@pytest.fixture
def store(url, database, driver):
    made = MongoStore(url=url, database=database, driver=driver, patience_s=30)
    yield made
    asyncio.run(made.close())


@pytest.fixture
def raw(url, database):
    """The database as other programs see it."""
    with pymongo.MongoClient(url) as client:
        yield client[database]


# --- long calls ---


def test_a_call_of_128k_tokens_and_a_message_beyond_mongodb_s_limit_come_back(store, raw):
    count = 131_072
    ids = tuple(range(count))
    long = call(prompt_ids=ids, output_ids=ids[::-1], logprobs=(-0.25,) * count, versions=((0, count),))
    picture = {"role": "user", "content": "x" * (17 * 2**20)}
    large = call(1, messages=(picture,), output={"role": "assistant", "content": "seen"})

    async def scenario():
        await announce(store)
        for interaction in (long, large):
            await store.add_interaction(RUN.id, interaction)
        return await store.episode("record"), await store.usage(RUN.id), await store.last_outputs(RUN.id)

    episode, usage, outputs = asyncio.run(scenario())
    assert episode.interactions == (long, large)
    assert (usage["record"].prompt_tokens, usage["record"].output_tokens) == (count + 2, count + 1)
    assert outputs == {"record": {"role": "assistant", "content": "seen"}}
    # The document of a call stays small: its arrays are elsewhere.
    assert "prompt_ids" not in raw["interactions"].find_one({"seq": 0})


def test_a_document_that_is_too_large_is_refused_and_the_store_goes_on(store):
    async def scenario():
        await announce(store)
        with pytest.raises(UnstorableError, match="16 MiB"):
            await store.add_tasks(RUN.id, [Task(id="big", data={"text": "x" * (17 * 2**20)})])
        await store.add_tasks(RUN.id, [Task(id="small", data={})])
        assert [task.id for task in await store.tasks(RUN.id)] == ["small"]

    asyncio.run(scenario())


# --- what Compass shows ---


def test_text_rewards_scores_and_tool_calls_are_plain_documents(store, raw):
    calls = [{"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}]

    async def scenario():
        await announce(store)
        await store.add_interaction(RUN.id, call(output={"role": "assistant", "content": None, "tool_calls": calls}))
        await store.finish_record(
            attrs.evolve(RECORD, outcome=Outcome.SCORED, reward=0.5, score=1.0, score_parts={"near": 1.0})
        )

    asyncio.run(scenario())
    record = raw["records"].find_one({"_id": "record"})
    assert (record["outcome"], record["reward"], record["score"], record["score_parts"]) == (
        "scored",
        0.5,
        1.0,
        {"near": 1.0},
    )
    kept = raw["interactions"].find_one({"output.tool_calls.function.name": "look"})
    assert kept["messages"] == [{"role": "user", "content": "hi"}]
    assert kept["output"]["tool_calls"] == calls
    assert kept["output_tokens"] == 1
    assert raw["arrays"].find_one({"of": kept["_id"]})["output_ids"] == (3).to_bytes(4, "little")


# --- indexes ---


QUERIES = {
    "tasks": ("tasks", queries.tasks("r", None)),
    "tasks of a set": ("tasks", queries.tasks("r", "train")),
    "records": ("records", queries.records("r", None, is_eval=None)),
    "records of a task": ("records", queries.records("r", "t", is_eval=None)),
    "a prefix": ("records", queries.records_with_prefix("abc")),
    "scored records": ("records", queries.scored_records("r", ["g", "h"])),
    "running records": ("records", queries.running_records("r")),
    "interactions": ("interactions", queries.interactions(["a", "b"])),
    "arrays": ("arrays", queries.arrays(["a", "b"])),
    "sessions": ("sessions", queries.sessions("r")),
    "steps": ("steps", queries.steps("r")),
    "the queue": ("groups", queries.queue("r")),
    "groups by state": ("groups", queries.groups_in("r", ["open", "ready"])),
    "groups to sample again": ("groups", queries.training_groups_below("r", 3)),
}


def stages(plan):
    yield plan["stage"]
    for inner in (*plan.get("inputStages", ()), *([plan["inputStage"]] if "inputStage" in plan else ())):
        yield from stages(inner)


@pytest.mark.parametrize("driver", ["pymongo"], indirect=True)
def test_each_query_follows_an_index(store, raw):
    asyncio.run(announce(store))
    found = {}
    for name, (collection, (wanted, order)) in QUERIES.items():
        cursor = raw[collection].find(wanted, sort=order or None)
        found[name] = set(stages(cursor.explain()["queryPlanner"]["winningPlan"]))
    if not os.environ.get("AGENTRL_TEST_MONGO_URI"):
        # SecantusDB reads a range of _id without its index; MongoDB uses it.
        assert found.pop("a prefix") == {"SORT", "COLLSCAN"}
    by_index = {"IXSCAN", "EXPRESS_IXSCAN", "IDHACK", "CLUSTERED_IXSCAN"}
    assert {name: plan for name, plan in found.items() if not plan & by_index or "COLLSCAN" in plan} == {}


def test_every_query_of_the_store_is_among_those():
    named = {name for name in vars(queries) if name.islower() and callable(getattr(queries, name))} - {"annotations"}
    # `runs` reads a collection of a few documents.
    asked = {"tasks", "records", "records_with_prefix", "scored_records", "running_records", "interactions", "arrays"}
    asked |= {"sessions", "steps", "queue", "groups_in", "training_groups_below", "runs"}
    assert named == asked


# --- the schema ---


def test_a_newer_schema_and_a_foreign_database_are_refused(store, raw, url, database, driver):
    asyncio.run(announce(store))
    raw["meta"].update_one({"_id": "schema"}, {"$set": {"version": 99}})
    for opened in (MongoStore(url=url, database=database, driver=driver), MongoStore.read(url=url, database=database)):
        with pytest.raises(StoreError, match=r"newer agentrl-mongo.*99.*upgrade"):
            asyncio.run(opened.runs())
        asyncio.run(opened.close())
    raw["meta"].drop()
    foreign = MongoStore(url=url, database=database, driver=driver)
    with pytest.raises(StoreError, match=r"another program.*store\.database"):
        asyncio.run(foreign.create_run(RUN))
    asyncio.run(foreign.close())


def test_a_damaged_document_is_told(store, raw):
    asyncio.run(announce(store))
    raw["records"].update_one({"_id": "record"}, {"$unset": {"outcome": ""}})
    with pytest.raises(StoreError, match=r"cannot list records: a document is damaged \(KeyError: 'outcome'\)"):
        asyncio.run(store.records(RUN.id))


def test_reading_creates_nothing(url, database, driver, raw):
    reader = MongoStore.read(url=url, database=database, driver=driver)
    assert asyncio.run(reader.runs()) == []
    asyncio.run(reader.close())
    assert raw.list_collection_names() == []


# --- several processes ---


TAKER = """
import asyncio, json, sys
from agentrl_mongo.store import MongoStore

async def main():
    store = MongoStore(url=sys.argv[1], database=sys.argv[2], driver=sys.argv[3])
    print("ready", flush=True)
    while groups := await store.take_groups("calm-otter", 2):
        print(json.dumps([group.id for group in groups]), flush=True)
    await store.close()

asyncio.run(main())
"""


def test_takers_in_two_processes_get_each_group_once(store, url, database, driver):
    count = 24

    async def scenario():
        await store.create_run(RUN)
        for index in range(count):
            await store.add_group(RUN.id, f"g{index}", "t", index=index, size=1, version=0)
        command = [sys.executable, "-c", TAKER, url, database, driver]
        takers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for taker in takers:
            assert await asyncio.to_thread(taker.stdout.readline) == "ready\n"
        for index in range(count):
            await store.finish_group(RUN.id, f"g{index}", usable=True)
        await store.close_sampling(RUN.id)
        return [(await asyncio.to_thread(taker.communicate))[0] for taker in takers]

    outputs = asyncio.run(scenario())
    taken = [group for output in outputs for line in output.splitlines() for group in json.loads(line)]
    assert sorted(taken) == sorted(f"g{index}" for index in range(count))


def test_a_forked_process_has_a_connection_of_its_own(store):
    asyncio.run(announce(store))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            asyncio.run(store.add_interaction(RUN.id, call()))
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(asyncio.run(store.episode("record")).interactions) == 1


def test_closing_ends_a_waiting_taker_on_another_thread(store, monkeypatch):
    asyncio.run(announce(store))
    found, asked, real = [], threading.Event(), groups.take

    async def tell(*arguments, **named):
        asked.set()
        return await real(*arguments, **named)

    monkeypatch.setattr(groups, "take", tell)

    async def take():
        with pytest.raises(StoreError, match="closed") as refusal:
            await store.take_groups(RUN.id, 1)
        found.append(refusal)

    thread = threading.Thread(target=lambda: asyncio.run(take()))
    thread.start()
    assert asked.wait(20)
    asyncio.run(store.close())
    thread.join(20)
    assert found


# --- the server goes away ---


# pymongo leaves the socket of a broken connection to the garbage collector
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
def test_what_was_stored_survives_a_killed_server_and_writing_goes_on(own_server, driver):
    store = MongoStore(url=own_server.url, database="d", driver=driver, patience_s=60)

    async def scenario():
        await announce(store)
        await store.add_interaction(RUN.id, call(0))
        await store.add_session(session)
        await store.add_step(step)
        await store.flush()
        own_server.kill()
        writing = asyncio.create_task(store.add_interaction(RUN.id, call(1)))
        taking = asyncio.create_task(store.take_groups(RUN.id, 1))
        await asyncio.to_thread(own_server.start)
        await writing
        await store.finish_record(attrs.evolve(RECORD, outcome=Outcome.SCORED, reward=1.0))
        await store.finish_group(RUN.id, "g", usable=True)
        (group,) = await taking
        assert await store.sessions(RUN.id) == [session]
        assert await store.steps(RUN.id) == [step]
        await store.close()
        return group

    row = {"run_id": RUN.id, "group_id": "g", "task_id": "t", "key_hash": b"k", "token_hash": b"t"}
    session = SessionRow(record_id="record", seed_key=(0, 2**62), policy={"top_p": 1.0}, opened_at=1.0, **row)
    step = StepRow(run_id=RUN.id, step=1, version=1, groups=(), records=("record",), metrics={"a/b": 1.0})
    group = asyncio.run(scenario())
    assert group.episodes[0].interactions == (call(0), call(1))


def test_an_absent_server_is_told_without_the_password(driver, caplog):
    caplog.set_level(logging.DEBUG)
    url = "mongodb://me:hush%40hush@127.0.0.1:9/?authSource=admin"
    store = MongoStore(url=url, database="d", driver=driver, patience_s=0.1)
    with pytest.raises(
        StoreError, match=r"mongodb://127\.0\.0\.1:9/d: cannot list runs: no answer for 0\.1 s .*start the server"
    ) as refusal:
        asyncio.run(store.runs())
    asyncio.run(store.close())
    assert refusal.value.__cause__ is None
    for text in (str(refusal.value), repr(store), caplog.text, repr(vars(store)), str(store.location)):
        assert "hush" not in text


def test_a_faulty_address_is_told_without_the_password(driver):
    store = MongoStore(url="mongodb://me:hush@h:99999", database="d", driver=driver)
    with pytest.raises(StoreError, match=r"correct store\.url") as refusal:
        asyncio.run(store.runs())
    asyncio.run(store.close())
    assert "hush" not in str(refusal.value)


@pytest.fixture(scope="module")
def guarded(server_of, tmp_path_factory):
    """Address of a server that knows the user `me` with the password `hush@1`."""
    folder = tmp_path_factory.mktemp("guarded")
    server = server_of(folder, "--sync-on-commit")
    with pymongo.MongoClient(server.url) as client:
        client["admin"].command("createUser", "me", pwd="hush@1", roles=["root"])
    server.kill()
    server = server_of(folder, "--auth")
    yield f"mongodb://me@127.0.0.1:{server.port}/?authSource=admin"
    server.kill()


@pytest.mark.slow
def test_a_wrong_password_is_told_and_a_right_one_works(guarded, driver, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    for password, works in (("wrong-one", False), ("hush@1", True)):
        monkeypatch.setenv("MONGO_PASSWORD", password)
        store = MongoStore(url=guarded, run=f"calm-{driver}", driver=driver, patience_s=5)
        if works:
            asyncio.run(announce(store))
        else:
            with pytest.raises(StoreError, match="correct user and password") as refusal:
                asyncio.run(announce(store))
            assert password not in str(refusal.value)
        asyncio.run(store.close())
        assert password not in caplog.text
