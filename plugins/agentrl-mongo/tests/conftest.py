"""A MongoDB server in a process of its own: SecantusDB or, if a variable names it, any other."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pymongo
import pytest

from agentrl_core.api.claims import Admission
from agentrl_core.api.members import Member
from agentrl_mongo.store import MongoStore

VARIABLE = "AGENTRL_MONGO_PYTHON"
ADDRESS = "AGENTRL_TEST_MONGO_URI"


AGENT = """
async def ask(data, *, base_url, api_key, http_client):
    body = {"model": "default", "messages": data["messages"], "max_tokens": 3}
    reply = await http_client.post(
        f"{base_url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {api_key}"}
    )
    reply.raise_for_status()
    return float(len(reply.json()["choices"][0]["message"].get("content") or "") % 2)
"""


class Server:
    """SecantusDB on a port of its own; it can be killed and started again."""

    def __init__(self, folder, python, *options):
        self.folder, self._python, self._options = folder, python, options
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"mongodb://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        program = [str(Path(self._python).with_name("secantusd-py")), "--host", "127.0.0.1", "--port", str(self.port)]
        program += ["--storage-path", str(self.folder / "data"), "--cache-size", "64M", *self._options]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(program, stdout=log, stderr=log, cwd=self.folder)
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            assert self._process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def stop(self, sign=signal.SIGTERM):
        if self._process.poll() is None:
            self._process.send_signal(sign)
            self._process.wait(30)

    def kill(self):
        self.stop(signal.SIGKILL)


@pytest.fixture(scope="session")
def python():
    found = os.environ.get(VARIABLE)
    if not found:
        pytest.skip(f"{VARIABLE} names no interpreter with what framework.txt lists; `nox -s tests` makes one")
    return found


@pytest.fixture(scope="session")
def server_of(python):
    """Start a server on the data in a folder, with these options."""
    return lambda folder, *options: Server(folder, python, *options)


@pytest.fixture(scope="session")
def server(tmp_path_factory, server_of):
    """A server that all tests share."""
    made = server_of(tmp_path_factory.mktemp("server"))
    yield made
    made.kill()


@pytest.fixture
def own_server(tmp_path, server_of):
    """A server that one test may kill."""
    made = server_of(tmp_path, "--sync-on-commit")
    yield made
    made.kill()


@pytest.fixture
def url(request):
    """Address of the server that the suite runs against."""
    return os.environ.get(ADDRESS) or request.getfixturevalue("server").url


@pytest.fixture
def database(url):
    """Name of an empty database; on a server that was there before, all whose names begin so are dropped at the end."""
    name = f"agentrl-test-{os.getpid()}-{time.monotonic_ns()}"
    yield name
    if not os.environ.get(ADDRESS):
        return
    with pymongo.MongoClient(url) as client:
        for made in client.list_database_names():
            if made.startswith(name):
                client.drop_database(made)


@pytest.fixture
def claimed():
    """Claim the first groups of a run, each with one slot, for a member that joins it."""

    async def claim(store, run_id, count=1, *, task_id="t"):
        member = Member(run_id=run_id, role="sample")
        await store.join(member)
        await store.admit(run_id, 0)
        admission = Admission(max_head_offpolicyness=0, tasks_per_step=count)
        options = {"admission": admission, "size": 1, "version": 0, "task_at": lambda _: task_id}
        return await store.claim_groups(run_id, member.id, count, **options)

    return claim


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


@pytest.fixture
def config(tmp_path, monkeypatch, url):
    """A small run with the store `mongo`, as the text of a config file."""
    monkeypatch.chdir(tmp_path)
    Path("agent.py").write_text(AGENT, encoding="utf-8")
    rows = [{"id": f"t{i}", "query": f"Say {i}.", "answer": str(i)} for i in range(4)]
    Path("tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    name = f"mongo-{os.getpid()}-{tmp_path.name}".replace("_", "-")[:60]
    yield {
        "name": name,
        "model": {"use": "tiny"},
        "data": {"train": "tasks.jsonl", "allow_code": True},
        "workflow": "agent.py:ask",
        "rollout": {"group_size": 2, "tasks_per_step": 2, "timeout_s": 20.0},
        "trainer": {"steps": 4, "lr": 1e-3, "warmup_steps": 0, "save_steps": 1},
        "store": {"use": "mongo", "url": url},
        "trackers": [{"use": "console"}],
    }
    with pymongo.MongoClient(url) as client:
        for database in client.list_database_names():
            if name in database:
                client.drop_database(database)
