"""Calls that meet others: cancelled takers, repeated calls, silent connections, two processes that begin."""

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest
from pymongo.errors import AutoReconnect, BulkWriteError

from agentrl_core.api.stores import RunRow, StepRow
from agentrl_core.types import Outcome, Record, Task
from agentrl_mongo import documents, groups, resume, schema
from agentrl_mongo.connection import Connection
from agentrl_mongo.loop_thread import LoopThread
from agentrl_mongo.store import MongoStore

RUN = RunRow(id="calm-otter", created_at=1.0, status="running", config={}, components={})
RECORD = Record(id="record", run_id=RUN.id, task_id="t", group_id="g", sample_index=0)


@pytest.fixture
def announce(claimed):
    """Begin a run with one record; return the claim of its group."""

    async def begin(store):
        await store.create_run(RUN)
        (claim,) = await claimed(store, RUN.id)
        await store.add_record(attrs.evolve(RECORD, group_id=claim.group_id))
        return claim

    return begin


def test_a_cancelled_taker_gives_back_what_it_marks_afterwards(store, raw, monkeypatch, announce):
    began, go_on, real = threading.Event(), threading.Event(), groups.take
    left = []

    async def take(*arguments, **named):
        began.set()
        try:
            await asyncio.to_thread(go_on.wait)
        except asyncio.CancelledError:  # a write goes on in the driver's thread
            left.append(asyncio.ensure_future(real(*arguments, **named)))
            raise
        return await real(*arguments, **named)

    async def scenario():
        claim = await announce(store)
        await store.finish_group(claim, usable=True)
        monkeypatch.setattr(groups, "take", take)
        taking = asyncio.create_task(store.take_groups(RUN.id, 1))
        await asyncio.to_thread(began.wait)
        taking.cancel()
        asyncio.get_running_loop().call_soon(go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await taking

    try:
        asyncio.run(scenario())
    finally:
        go_on.set()
    assert left == []
    assert raw["groups"].find_one({})["state"] == "ready"


def test_a_repeated_call_counts_the_steps_that_it_voids(store, monkeypatch, announce):
    real, calls = resume.void_after, []

    async def void_after(*arguments, **named):
        await real(*arguments, **named)
        calls.append(arguments)
        if len(calls) == 1:
            raise AutoReconnect("the reply was lost")

    async def scenario():
        await announce(store)
        await store.add_step(StepRow(run_id=RUN.id, step=1, version=1, groups=(), records=(), metrics={}))
        monkeypatch.setattr(resume, "void_after", void_after)
        return await store.void_after(RUN.id, 0)

    assert asyncio.run(scenario()) == 1
    assert len(calls) == 2


def test_finished_records_and_groups_are_not_remembered(store, announce):
    async def scenario():
        claim = await announce(store)
        await store.finish_record(attrs.evolve(RECORD, outcome=Outcome.SCORED, reward=1.0))
        await store.finish_group(claim, usable=True)

    asyncio.run(scenario())
    assert store._connection.known == {("runs", RUN.id)}


class Proxy:
    """Passes bytes on to a server, until its connections fall silent."""

    def __init__(self, port):
        self._target, self._open, self._silent = port, set(), set()
        self._loop = LoopThread("proxy")

    async def start(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self._server.sockets[0].getsockname()[1]

    async def run(self, work):
        return await self._loop.run(work)

    async def silence(self):
        self._silent |= self._open

    async def _serve(self, reader, writer):
        self._open.add(writer)
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        with contextlib.suppress(OSError):
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))

    async def _pass(self, reader, writer):
        while data := await reader.read(2**16):
            if writer not in self._silent:
                writer.write(data)
                await writer.drain()
        writer.close()

    async def close(self):
        self._server.close()


@pytest.mark.parametrize("driver", ["motor", "pymongo"])
# pymongo leaves the socket of a broken connection to the garbage collector
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
def test_a_call_on_a_silent_connection_is_repeated_on_another(server, database, driver):
    proxy = Proxy(server.port)

    async def scenario():
        port = await proxy.run(proxy.start())
        store = MongoStore(url=f"mongodb://127.0.0.1:{port}", database=database, driver=driver, patience_s=6)
        await store.create_run(RUN)
        await proxy.run(proxy.silence())
        async with asyncio.timeout(30):
            found = await store.runs()
        await store.close()
        await proxy.run(proxy.close())
        await proxy._loop.stop()
        return found

    assert asyncio.run(scenario()) == [RUN]


class Collection:
    def __init__(self, *results):
        self.results = list(results)

    async def insert_many(self, *_, **__):
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result

    async def find_one(self, *_):
        return self.results.pop(0)


class Database(dict):
    async def list_collection_names(self):
        return ["meta"]


def test_a_write_concern_error_beside_duplicates_is_not_lost(monkeypatch):
    concern = {"code": 91, "errmsg": "shutting down", "errorLabels": ["RetryableWriteError"]}
    fault = BulkWriteError({"writeErrors": [{"code": 11000, "errmsg": "there"}], "writeConcernErrors": [concern]})
    tasks = Collection(fault, None)

    async def database(*_, **__):
        return Database(tasks=tasks)

    monkeypatch.setattr(Connection, "_database", database)

    async def scenario():
        store = MongoStore(url="mongodb://h", database="d")
        store._connection.known.add(("runs", RUN.id))
        await store.add_tasks(RUN.id, [Task(id="t", data={})])
        await store.close()

    asyncio.run(scenario())
    assert tasks.results == []  # the insert was repeated


def test_a_store_that_another_process_begins_meanwhile_is_not_foreign():
    meta = Collection(None, {"version": schema.SCHEMA_VERSION})
    assert asyncio.run(schema.is_store(Database(meta=meta), "here"))


def test_a_password_sets_no_option_of_the_client():
    store = MongoStore(url="mongodb://u:w=1,journal=0@h/?SocketTimeoutMS=9", database="d", patience_s=30)
    options = store._connection._client_options()
    assert (options["w"], options["journal"]) == ("majority", True)
    assert "socketTimeoutMS" not in options


def test_orders_of_many_threads_differ():
    with ThreadPoolExecutor(8) as threads:
        orders = [order for many in threads.map(_orders, range(8)) for order in many]
    assert len(set(orders)) == len(orders)


def _orders(_):
    return [documents.next_order() for _ in range(2000)]


def test_a_thread_that_stops_takes_no_more_work():
    async def nothing():
        pass

    async def scenario():
        loop = LoopThread("test")
        await loop.run(nothing())
        await loop.stop()
        with pytest.raises(RuntimeError, match="stopping"):
            await loop.run(nothing())

    asyncio.run(scenario())
