"""Runs whose store is a MongoDB server: what the commands show, what their folders keep, and how they are resumed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from agentrl_core import Trainer
from agentrl_core import config as configs
from agentrl_core.api.stores import IDENTITY, RunRow, StepRow
from agentrl_core.cli import main
from agentrl_core.concurrency.secrecy import environment
from agentrl_core.errors import ConfigError, StoreError
from agentrl_core.plugins.manager import load_registry
from agentrl_core.run import resume
from agentrl_core.run.checks import resolve_agent
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Interaction, Outcome, Record, Task
from agentrl_mongo.store import MongoStore


@pytest.fixture
def agentrl(capsys, tmp_path, monkeypatch):
    """Call `agentrl` with these arguments, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def make_folder(name, **store):
    folder = Path("runs") / name
    folder.mkdir(parents=True)
    kept = {"command": "run", "base_dir": str(Path.cwd()), "config": {"name": name, "store": store}}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


async def fill(store, name, claimed):
    await store.create_run(RunRow(id=name, created_at=1.0, status="finished", config={"seed": 0}, components={}))
    await store.add_tasks(name, [Task(id="maze", data={"query": "where?"}, answer="there")])
    (claim,) = await claimed(store, name, task_id="maze")
    slot = {"group_id": claim.group_id, "sample_index": 0, "started_at": 1.0}
    record = Record(id=f"{name}-a", run_id=name, task_id="maze", **slot)
    await store.add_record(record)
    reply = {"role": "assistant", "content": "over there"}
    ids = {"prompt_ids": (1, 2), "output_ids": (3,), "logprobs": (-0.5,), "versions": ((0, 1),)}
    question = ({"role": "user", "content": "where?"},)
    await store.add_interaction(
        name, Interaction(id="c", record_id=record.id, seq=0, messages=question, output=reply, **ids)
    )
    await store.finish_record(attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0, finished_at=2.0))
    used = {"groups": (claim.group_id,), "records": (record.id,)}
    row = StepRow(run_id=name, step=1, version=1, **used, metrics={"reward/mean": 1.0})
    await store.add_step(row)
    await store.add_version(name, 1, step=1)
    await store.close()


def test_commands_show_a_run_whose_store_is_elsewhere(agentrl, url, database, claimed):
    folder = make_folder("calm-otter", use="mongo", url=url, database=database, driver="pymongo")
    asyncio.run(fill(MongoStore(url=url, database=database, driver="pymongo"), "calm-otter", claimed))
    code, out, _ = agentrl("runs", "list")
    assert (code, out.splitlines()[1].split()[:5]) == (0, ["calm-otter", "finished", "1", "1.000", "1"])
    assert "records     scored 1" in agentrl("runs", "show", "calm-otter")[1]
    assert "over there" in agentrl("trace", "list", str(folder))[1]
    assert "over there" in agentrl("trace", "show", "calm-otter-a")[1]
    code, out, _ = agentrl("trace", "export")
    assert json.loads(out)["messages"][-1]["content"] == "over there"


def test_a_server_that_is_away_hides_no_other_run(agentrl, monkeypatch, claimed):
    monkeypatch.setenv("MONGO_PASSWORD", "hush-hush")
    make_folder("away", use="mongo", url="mongodb://me@127.0.0.1:9", patience_s=0.1)
    asyncio.run(fill(SQLiteStore(path=Path("runs/here/agentrl.db")), "here", claimed))
    code, out, _ = agentrl("runs", "list")
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert "unreadable: mongodb://127.0.0.1:9/agentrl-away: cannot list runs: no answer" in lines["away"]
    assert "finished" in lines["here"]
    assert agentrl("trace", "show", "here-a")[0] == 0
    code, out, err = agentrl("trace", "list", "away")
    assert code == 1
    assert "start the server or correct store.url" in err
    assert "hush-hush" not in out + err


def test_a_missing_password_is_told_with_its_variable(agentrl, monkeypatch):
    monkeypatch.delenv("MONGO_PASSWORD", raising=False)
    make_folder("away", use="mongo", url="mongodb://me@127.0.0.1:9")
    code, _, err = agentrl("trace", "list", "away")
    assert code == 2
    assert "config.json: store.url: mongo: 'url' has a user and no password" in err
    assert "MONGO_PASSWORD" in err


@pytest.fixture
def stopped(config):
    """Config of a run that has stopped at once, because its server is away; the url had a password."""
    config["store"] = {
        "use": "mongo",
        "url": "mongodb://me:hush-hush@127.0.0.1:9/?tlsCertificateKeyFilePassword=hush-two",
    }
    config["store"]["patience_s"] = 0.1
    with pytest.raises(StoreError, match="no answer") as refusal:
        Trainer(config).train()
    return config, str(refusal.value)


def test_no_file_of_a_run_has_the_password_of_its_store(stopped):
    config, refusal = stopped
    texts = [path.read_text(errors="replace") for path in Path("runs").rglob("*") if path.is_file()]
    assert texts
    assert not [text for text in (*texts, refusal) if "hush" in text]
    assert json.loads((Path("runs") / config["name"] / "config.json").read_text())["config"]["store"]["url"].startswith(
        "mongodb://me@127.0.0.1:9"
    )


def test_resuming_asks_for_the_password_that_the_folder_does_not_keep(stopped, monkeypatch):
    monkeypatch.delenv("MONGO_PASSWORD", raising=False)
    folder = Path("runs") / stopped[0]["name"]
    with pytest.raises(ConfigError, match=r"store\.url.*no password.*MONGO_PASSWORD.*store\.url="):
        resume(folder)


@pytest.mark.slow
def test_a_password_in_an_override_is_not_kept_either(stopped):
    folder = Path("runs") / stopped[0]["name"]
    with pytest.raises(StoreError, match="no answer"):
        resume(folder, ["store.url=mongodb://me:hush-three@127.0.0.1:9"])
    assert "hush" not in (folder / "config.json").read_text()


def test_a_run_of_another_project_with_the_same_name_stays_as_it_is(config, url):
    name = config["name"]

    async def begin():
        store = MongoStore(url=url, run=name)
        components = {IDENTITY: "of-the-other-project"}
        await store.create_run(RunRow(id=name, created_at=1.0, status="running", config={}, components=components))
        await store.add_step(step)
        await store.close()

    async def read():
        reader = MongoStore.read(url=url, run=name)
        found = [(row.status, row.error) for row in await reader.runs()], await reader.steps(name)
        await reader.close()
        return found

    step = StepRow(run_id=name, step=1, version=1, groups=(), records=(), metrics={})
    asyncio.run(begin())
    for start in (Trainer(config).train, lambda: resume(Path("runs") / name)):
        with pytest.raises(StoreError, match=r"another run .*another --name, or name another database"):
            start()
        assert asyncio.run(read()) == ([("running", "")], [step])


LOOK = """
import os
from pathlib import Path

Path(f"seen-{os.getpid()}").write_text(str("MONGO_PASSWORD" in os.environ))

class Look:
    def run(self, data, **_):
        return 1.0
"""


def test_an_agent_s_process_does_not_get_the_password(config, monkeypatch):
    monkeypatch.setattr("agentrl_core.concurrency.secrecy._withheld", set())
    monkeypatch.setenv("MONGO_PASSWORD", "hush-hush")
    assert MongoStore.secret_variables({"password_env": "OTHER"}) == ["OTHER"]
    Path("look.py").write_text(LOOK, encoding="utf-8")
    config |= {"workflow": "look.py:Look"}
    config["rollout"] |= {"agent": {"mode": "subproc"}}
    loaded = configs.LoadedConfig(configs.parse(config), Path.cwd())
    resolve_agent(loaded, load_registry(), loaded.run.workflow).close_now()
    seen = {path.name: path.read_text() for path in Path.cwd().glob("seen-*")}
    seen.pop(f"seen-{os.getpid()}", None)
    assert set(seen.values()) == {"False"}
    assert environment().keys() == os.environ.keys() - {"MONGO_PASSWORD"}


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["motor", "pymongo"])
def test_a_killed_run_is_resumed_from_a_server(config, driver, url):
    config["store"]["driver"] = driver
    Path("config.json5").write_text(json.dumps(config))
    command = [sys.executable, "-m", "agentrl_core", "run", "config.json5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        seen = []
        for line in process.stdout:
            seen.append(line)
            if line.split()[:2] == ["2", "2"]:
                break
        else:
            pytest.fail("the run ended first:\n" + "".join(seen))
        process.send_signal(signal.SIGKILL)
    folder = Path("runs") / config["name"]
    assert not (folder / "agentrl.db").exists()
    summary = resume(folder)
    assert (summary.status, summary.steps) == ("finished", 4)

    async def read():
        reader = MongoStore.read(url=url, run=config["name"], driver=driver)
        steps, (run,) = await reader.steps(config["name"]), await reader.runs()
        await reader.close()
        return steps, run

    steps, run = asyncio.run(read())
    assert run.status == "finished"
    assert [row.step for row in steps if not row.voided] == [1, 2, 3, 4]
    taken = [group for row in steps if not row.voided for group in row.groups]
    assert len(taken) == len(set(taken)) == 8
