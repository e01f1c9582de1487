"""People at a run that goes on: pause, limits, one episode cancelled, stop; then a fork, and tidying up."""

import asyncio
import json
import time
from pathlib import Path

import pytest
import yaml

from agentrl_core.cli import main
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Outcome

pytestmark = pytest.mark.slow
DEADLINE_S = 60.0


@pytest.fixture
def started(project, warm):
    """Start a run in a process of its own, under the name `live`."""

    def start(agent="Agent", **sections):
        config = project(agent, **{"trackers": ["console", "jsonl"], **sections})
        Path("config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        return warm.program("run", Path("config.yaml").resolve(), "--name", "live", COLUMNS="200")

    return start


@pytest.fixture
def runs(capsys):
    """Call `agentrl runs … --json` in this process; gives the exit code and the parsed output."""

    def call(*arguments):
        code = main(["runs", *arguments, "--json"])
        captured = capsys.readouterr()
        return code, json.loads(captured.out) if captured.out else captured.err

    return call


def read_until(process, text):
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return
    pytest.fail("the run ended first:\n" + "".join(seen))


def stored(call):
    async def read():
        store = SQLiteStore.read(Path("runs/live/agentrl.db"))
        try:
            return await call(store)
        finally:
            await store.close()

    return asyncio.run(read())


def until(found):
    """Look at the store until there is something, up to the deadline."""
    end = time.monotonic() + DEADLINE_S
    while not (value := found()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return value


def test_a_live_run_pauses_goes_on_under_a_new_limit_and_stops(started, runs):
    with started(trainer={"steps": 100_000, "save_steps": 100_000}) as process:
        read_until(process, "step 1 of 100000 begins")
        assert runs("pause", "live") == (0, {"name": "live", "wanted": "pause"})
        read_until(process, "the run is paused")
        assert runs("set", "live", "trainer.save_steps=1", "rollout.max_concurrent_rollouts=3")[0] == 0
        code, shown = runs("show", "live")
        assert (code, shown["status"]) == (0, "paused")
        assert {member["role"]: member["state"] for member in shown["members"]} == {"train": "live", "sample": "live"}
        assert runs("resume", "live") == (0, {"name": "live", "wanted": "run"})
        read_until(process, "the run goes on")
        until(lambda: sorted(Path("runs/live/checkpoints").glob("step-*")))  # every 100,000 steps, without the limit
        code, stopped = runs("stop", "live", "--wait", str(DEADLINE_S))
        assert (code, stopped["live"]) == (0, [])
        assert process.wait(DEADLINE_S) == 143  # as after SIGTERM
    code, shown = runs("show", "live")
    assert shown["status"] == "interrupted"
    assert shown["checkpoint"]["step"] == shown["steps"] > 0
    assert shown["control"]["limits"] == {"trainer.save_steps": 1, "rollout.max_concurrent_rollouts": 3}


def test_one_record_is_cancelled_and_its_slot_sampled_again(started, runs):
    with started("Stuck", rollout={"timeout_s": 1000.0}) as process:

        def running():
            return [item for item in stored(lambda s: s.records("live")) if item.outcome is Outcome.RUNNING]

        read_until(process, "begins")
        record = until(lambda: len(found := running()) == 8 and found[0])
        code, ended = runs("cancel", "live", record.id, "--wait", str(DEADLINE_S))
        assert (code, ended) == (0, {"record": record.id, "outcome": "cancelled", "reason": "by_user"})
        assert stored(lambda store: store.control("live")).cancel == ()
        code, again = runs("cancel", "live", record.id)
        assert code == 2
        assert "has ended already (cancelled)" in again
        # `rollout.retries`: the slots of a group are sampled again once all of the others have ended.
        for other in running():
            if other.group_id == record.group_id:
                assert runs("cancel", "live", other.id, "--wait", str(DEADLINE_S))[0] == 0
        retried = until(lambda: [item for item in running() if item.attempt == 1])
        assert {item.group_id for item in retried} == {record.group_id}
        assert runs("stop", "live", "--wait", str(DEADLINE_S))[0] == 0
        assert process.wait(DEADLINE_S) == 143


def test_a_run_is_forked_explained_and_tidied_up(started, runs, warm, capsys):
    with started(trainer={"steps": 3, "save_steps": 1, "keep_last": 9}) as process:
        output, _ = process.communicate()
        assert process.returncode == 0, output
    folder = Path("runs/live")
    readme = (folder / "README.md").read_text(encoding="utf-8")
    for path in folder.iterdir():
        assert path.name.startswith(".") or f"`{path.name}`" in readme or path.name == "README.md"
    assert "agentrl runs resume live" in readme

    with warm.program("runs", "fork", "live", "--step", "2", "--name", "child", "trainer.steps=1") as process:
        output, _ = process.communicate()
        assert process.returncode == 0, output
    assert "begins from the checkpoint of run live, step 2, digest " in output
    code, child = runs("show", "child")
    assert (code, child["status"], child["steps"]) == (0, "finished", 1)
    assert child["origin"].startswith("run live, step 2, digest ")
    assert main(["trace", "lineage", "version:0", "--run", "child"]) == 0
    assert f"checkpoint of {child['origin']}" in " ".join(capsys.readouterr().out.split())

    code, dry = runs("gc", "live", "--dry-run")
    assert (code, dry["removed"]) == (0, False)
    assert [Path(item["path"]).name for item in dry["items"]] == ["step-2", "step-1"]
    assert runs("gc", "live")[0] == 2  # it asks for nothing without a terminal
    code, done = runs("gc", "live", "--yes")
    assert (code, done["removed"]) == (0, True)
    assert [path.name for path in (folder / "checkpoints").glob("step-*")] == ["step-3"]
    for run in ("live", "child"):  # the fork has its own weights
        with warm.program("runs", "resume", run, "trainer.steps=4") as process:
            output, _ = process.communicate()
            assert process.returncode == 0, output
