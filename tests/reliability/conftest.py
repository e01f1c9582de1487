"""Places for runs: a SQLite file, or a database of a MongoDB server."""

import importlib.util
import json
import os
import time
from pathlib import Path

import attrs
import pytest
from tests.reliability.worker import Run

from agentrl_core.api.run_rows import RunRow

MONGO_ADDRESS, MONGO_PYTHON = "AGENTRL_TEST_MONGO_URI", "AGENTRL_MONGO_PYTHON"
MONGO_SERVER = Path(__file__).parents[2] / "plugins/agentrl-mongo/tests/conftest.py"


@pytest.fixture
def mongo_url(tmp_path):
    """Address of the server that a variable names, or of one that is started for the test."""
    if MONGO_ADDRESS in os.environ:
        yield os.environ[MONGO_ADDRESS]
        return
    if MONGO_PYTHON not in os.environ:
        pytest.skip(f"neither {MONGO_ADDRESS} nor {MONGO_PYTHON} is set; `nox -s tests` sets the second one")
    spec = importlib.util.spec_from_file_location("mongo_server", MONGO_SERVER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    server = module.Server(tmp_path, os.environ[MONGO_PYTHON])
    yield server.url
    server.kill()


@pytest.fixture(params=["sqlite", "mongo"])
def place(request, tmp_path):
    """The `store` and `options` of a `Run`."""
    if request.param == "sqlite":
        return {"store": "agentrl_core.stores.sqlite:SQLiteStore", "options": {"path": str(tmp_path / "runs.sqlite")}}
    url = request.getfixturevalue("mongo_url")
    database = f"agentrl-reliability-{os.getpid()}-{time.monotonic_ns()}"
    return {"store": "agentrl_mongo.store:MongoStore", "options": {"url": url, "database": database, "run": "run"}}


@pytest.fixture
def make_run(place, tmp_path):
    """Add a run to its store, and write its file for the workers."""

    async def make(**options):
        run = Run(folder=str(tmp_path), **place, **options)
        Path(tmp_path, "run.json").write_text(json.dumps(attrs.asdict(run)))
        store = run.open()
        await store.create_run(RunRow(id=run.name, created_at=time.time(), status="running", config={}, components={}))
        return run, store

    return make
