"""Places for runs: a SQLite file, or a database of a MongoDB server."""

import json
import os
import time
from pathlib import Path

import attrs
import pytest
from tests.reliability.worker import Run

from agentrl_core.api.run_rows import RunRow

MONGO_ADDRESS = "AGENTRL_TEST_MONGO_URI"


@pytest.fixture(params=["sqlite", "mongo"])
def place(request, tmp_path):
    """The `store` and `options` of a `Run`."""
    if request.param == "sqlite":
        return {"store": "agentrl_core.stores.sqlite:SQLiteStore", "options": {"path": str(tmp_path / "runs.sqlite")}}
    if not os.environ.get(MONGO_ADDRESS):
        pytest.skip(f"{MONGO_ADDRESS} names no MongoDB server")
    database = f"agentrl-reliability-{os.getpid()}-{time.monotonic_ns()}"
    return {
        "store": "agentrl_mongo.store:MongoStore",
        "options": {"url": os.environ[MONGO_ADDRESS], "database": database, "run": "run"},
    }


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
