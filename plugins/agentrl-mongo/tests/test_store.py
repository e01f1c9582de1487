"""Runs survive long calls, lost connections, killed servers and several takers; Compass shows them readably."""

import asyncio
import contextlib
import gc
import inspect
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading

import attrs
import pymongo
import pytest

from agentrl_core.api.claims import Admission
from agentrl_core.api.members import Member
from agentrl_core.api.run_rows import RunRow, SessionRow, StepRow
from agentrl_core.errors import StoreError, UnstorableError
from agentrl_core.types import Interaction, Outcome, Record, Task, ToolCall, ToolOutcome
from agentrl_mongo import groups, queries, schema
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


@pytest.fixture
def announce(claimed):
    """Begin a run with one record; return the claim of its group."""

    async def begin(store):
        await store.create_run(RUN)
        (claim,) = await claimed(store, RUN.id)
        await store.add_record(attrs.evolve(RECORD, group_id=claim.group_id))
        return claim

    return begin


# --- long calls ---


def test_a_call_of_128k_tokens_and_a_message_beyond_mongodb_s_limit_come_back(store, raw, announce):
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


def test_a_document_that_is_too_large_is_refused_and_the_store_goes_on(store, announce):
    async def scenario():
        await announce(store)
        with pytest.raises(UnstorableError, match="16 MiB"):
            await store.add_tasks(RUN.id, [Task(id="big", data={"text": "x" * (17 * 2**20)})])
        await store.add_tasks(RUN.id, [Task(id="small", data={})])
        assert [task.id for task in await store.tasks(RUN.id)] == ["small"]

    asyncio.run(scenario())


# --- what Compass shows ---


def test_text_rewards_scores_and_tool_calls_are_plain_documents(store, raw, announce):
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
    "records of groups": ("records", queries.records_of("r", ["g", "h"])),
    "scored records of groups": ("records", queries.records_of("r", ["g", "h"], "scored")),
    "running records": ("records", queries.running_records("r")),
    "interactions": ("interactions", queries.interactions(["a", "b"])),
    "tool calls": ("tool_calls", queries.tool_calls(["a", "b"])),
    "arrays": ("arrays", queries.arrays(["a", "b"])),
    "sessions": ("sessions", queries.sessions("r")),
    "steps": ("steps", queries.steps("r")),
    "the last step": ("steps", queries.last_step("r")),
    "versions": ("versions", queries.live_versions("r", 3)),
    "the queue": ("groups", queries.queue("r")),
    "groups": ("groups", queries.groups("r")),
    "pending groups": ("groups", queries.pending_groups("r")),
    "groups that nobody has": ("groups", queries.free_groups("r", is_eval=True)),
    "groups of members": ("groups", queries.held_groups("r", ["a", "b"])),
    "groups of lost members": ("groups", queries.abandoned_groups("r", ["a", "b"])),
    "positions to claim": ("groups", queries.positions_again("r")),
    "positions to repeat": ("groups", queries.positions_to_repeat("r", ["waiting"])),
    "open evaluations": ("groups", queries.open_evaluations("r")),
    "groups of void versions": ("groups", queries.ended_groups_of("r", 3)),
    "members": ("members", queries.members("r")),
    "live members": ("members", queries.live_members("r")),
}


def stages(plan):
    yield plan["stage"]
    for inner in (*plan.get("inputStages", ()), *([plan["inputStage"]] if "inputStage" in plan else ())):
        yield from stages(inner)


@pytest.mark.parametrize("driver", ["pymongo"], indirect=True)
def test_each_query_follows_an_index(store, raw, announce):
    asyncio.run(announce(store))
    found = {}
    for name, (collection, (wanted, order)) in QUERIES.items():
        cursor = raw[collection].find(wanted, sort=order or None)
        found[name] = set(stages(cursor.explain()["queryPlanner"]["winningPlan"]))
    if not os.environ.get("AGENTRL_TEST_MONGO_URI"):
        # SecantusDB reads a range, and the ranges beside `$nin`, without an index; MongoDB uses one.
        for name in ("a prefix", "versions", "groups of lost members"):
            assert "COLLSCAN" in found.pop(name)
    by_index = {"IXSCAN", "EXPRESS_IXSCAN", "IDHACK", "CLUSTERED_IXSCAN"}
    assert {name: plan for name, plan in found.items() if not plan & by_index or "COLLSCAN" in plan} == {}


def test_every_query_of_the_store_is_among_those():
    named = {name for name in vars(queries) if name.islower() and callable(getattr(queries, name))} - {"annotations"}
    source = inspect.getsource(sys.modules[__name__])
    asked = set(re.findall(r"queries\.(\w+)\(", source))
    # `runs` reads a collection of a few documents.
    assert {name for name in named if not name.startswith("_")} - asked == {"runs"}


# --- the schema ---


def layout_1(raw):
    """Fill a database as the version before members and claims did."""

    def group(order, index, state, **fields):
        group_id = f"g{order}"
        own = {"_id": f"{RUN.id}/{group_id}", "run_id": RUN.id, "id": group_id, "task_id": "t", "index": index}
        own |= {"size": 1, "version": 0, "is_eval": False, "state": state, "order": order}
        return own | {"queued": state in ("open", "ready")} | fields

    raw["meta"].insert_one({"_id": "schema", "version": 1, "written_by": "agentrl-mongo 0.1.0"})
    run = {"_id": RUN.id, "created_at": 1.0, "status": "interrupted", "error": "", "config": {"seed": 0}}
    raw["runs"].insert_one(run | {"components": {}, "sampling_closed": False, "last_version": 1, "order": 1})
    kept = [group(1, 0, "taken"), group(2, 1, "dropped"), group(3, 1, "dropped"), group(4, 2, "ready")]
    raw["groups"].insert_many([*kept, group(5, 3, "aside"), group(6, 0, "open", is_eval=True, queued=False)])
    step = {"run_id": RUN.id, "step": 1, "version": 1, "groups": ["g1"], "records": [], "metrics": {}}
    raw["steps"].insert_one(step | {"voided": False, "order": 1})


def test_a_run_of_an_earlier_layout_is_read_and_resumed(store, raw, url, database, driver):
    layout_1(raw)

    async def scenario():
        reader = MongoStore.read(url=url, database=database, driver=driver)
        assert (await reader.control(RUN.id)).admitted_steps == -1
        assert [(row.index, row.state, row.task_set) for row in await reader.groups(RUN.id)][-1] == (0, "open", "eval")
        await reader.close()
        await store.void_after(RUN.id, 1)
        assert [row.state for row in await store.groups(RUN.id)] == [
            *("trained", "dropped", "dropped", "ready", "aside", "aside")
        ]
        # Its position comes again with the later group.
        assert not await store.requeue_group(RUN.id, "g2")
        member = Member(run_id=RUN.id, role="sample")
        await store.join(member)
        await store.admit(RUN.id, 1)
        admission = Admission(max_head_offpolicyness=3, tasks_per_step=1, requeue=2)
        found = await store.claim_groups(
            RUN.id, member.id, 9, admission=admission, size=1, version=1, task_at=lambda _: "t"
        )
        # Four steps' worth may be under way, and one group is ready.
        assert [(claim.index, claim.tries) for claim in found] == [(1, 2), (3, 0), (4, 0)]

    asyncio.run(scenario())
    assert raw["meta"].find_one({})["version"] == schema.SCHEMA_VERSION


def test_a_run_without_tool_calls_and_marks_is_read_and_resumed(store, raw, url, database, driver, announce):
    """Layout 2 had neither."""
    asyncio.run(announce(store))
    raw["meta"].update_one({"_id": "schema"}, {"$set": {"version": 2}})
    raw["records"].update_many({}, {"$unset": {"marks": ""}})
    raw["tool_calls"].drop()
    reader = MongoStore.read(url=url, database=database, driver=driver)
    assert [record.marks for record in asyncio.run(reader.records(RUN.id))] == [()]
    assert asyncio.run(reader.episode("record")).tool_calls == ()
    asyncio.run(reader.close())
    resumed = MongoStore(url=url, database=database, driver=driver)
    asyncio.run(resumed.void_after(RUN.id, 0))
    asyncio.run(resumed.close())
    assert raw["meta"].find_one({})["version"] == schema.SCHEMA_VERSION
    assert len(raw["tool_calls"].index_information()) == 3


def test_a_tool_call_is_readable_in_compass(store, raw, announce):
    asyncio.run(announce(store))
    shown = ({"type": "text", "text": "4 è"},)
    given = ToolCall(
        id="tool-1", record_id="record", seq=0, name="add", arguments={"a": [1, 3]}, server="calculator", tool="add",
        outcome=ToolOutcome.OK, shown=shown,
    )  # fmt: skip
    asyncio.run(store.add_tool_call(RUN.id, given))
    kept = raw["tool_calls"].find_one({"name": "add", "arguments.a": 3})
    assert (kept["outcome"], kept["shown"], kept["raw"]) == ("ok", [{"type": "text", "text": "4 è"}], None)
    assert raw["arrays"].count_documents({}) == 0


def test_a_newer_schema_and_a_foreign_database_are_refused(store, raw, url, database, driver, announce):
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


def test_a_damaged_document_is_told(store, raw, announce):
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


def test_takers_in_two_processes_get_each_group_once(store, url, database, driver, claimed):
    count = 24

    async def scenario():
        await store.create_run(RUN)
        claims = await claimed(store, RUN.id, count)
        command = [sys.executable, "-c", TAKER, url, database, driver]
        takers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for taker in takers:
            assert await asyncio.to_thread(taker.stdout.readline) == "ready\n"
        for claim in claims:
            await store.finish_group(claim, usable=True)
        await store.close_sampling(RUN.id)
        found = [(await asyncio.to_thread(taker.communicate))[0] for taker in takers]
        return found, [claim.group_id for claim in claims]

    outputs, names = asyncio.run(scenario())
    taken = [group for output in outputs for line in output.splitlines() for group in json.loads(line)]
    assert sorted(taken) == sorted(names)


def test_a_forked_process_has_a_connection_of_its_own(store, announce):
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


def test_closing_ends_a_waiting_taker_on_another_thread(store, monkeypatch, announce):
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
def test_what_was_stored_survives_a_killed_server_and_writing_goes_on(own_server, driver, announce):
    store = MongoStore(url=own_server.url, database="d", driver=driver, patience_s=60)

    async def scenario():
        claim = await announce(store)
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
        await store.finish_group(claim, usable=True)
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


def test_closing_while_the_client_connects_leaves_no_socket_open(driver):
    with contextlib.ExitStack() as closing:
        silent = closing.enter_context(socket.socket())
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        for _ in range(4):  # more than its queue holds, so that the next one hears nothing
            caller = closing.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(silent.getsockname())
        url = f"mongodb://127.0.0.1:{silent.getsockname()[1]}"
        store = MongoStore(url=url, database="d", driver=driver, patience_s=0)
        with pytest.raises(StoreError, match="no answer"):
            asyncio.run(store.runs())
        asyncio.run(store.close())
        gc.collect()  # which would close it with a warning, an error here


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
def test_a_wrong_password_is_told_and_a_right_one_works(guarded, driver, monkeypatch, caplog, announce):
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
