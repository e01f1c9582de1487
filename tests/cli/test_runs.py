"""agentrl runs: what there is, how far each came, and going on."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import attrs
import pytest

from agentrl_core.api.claims import Admission
from agentrl_core.api.members import Member
from agentrl_core.api.stores import RunRow
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Outcome, Record


def test_runs_are_listed_by_their_last_write(agentrl, make_run):
    make_run("brisk-heron", reward=0.25)
    old = make_run("calm-otter", reward=0.5)
    three_days_ago = time.time() - 3 * 86400
    os.utime(old / "agentrl.db", (three_days_ago, three_days_ago))
    header, first, second = agentrl("runs", "list").out.splitlines()
    assert header.split() == ["NAME", "STATUS", "STEPS", "REWARD", "VERSION", "LAST", "WRITE"]
    assert first.split() == ["calm-otter", "running", "1", "0.500", "2", "3", "d", "ago"]
    assert second.split()[:5] == ["brisk-heron", "running", "1", "0.250", "2"]


def test_runs_as_json(agentrl, make_run):
    folder = make_run("calm-otter")
    (run,) = agentrl("runs", "list", "--json").json
    assert (run["name"], run["steps"], run["voided_steps"], run["version"], run["reward"]) == (
        "calm-otter",
        1,
        1,
        2,
        1.0,
    )
    assert run["last_write"] == pytest.approx((folder / "agentrl.db").stat().st_mtime)


def test_a_broken_database_hides_no_other_run(agentrl, make_run, tmp_path):
    make_run("calm-otter")
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "agentrl.db").write_bytes(b"not a database " * 100)
    result = agentrl("runs", "list")
    assert result.code == 0
    assert "unreadable" in result.out
    assert "calm-otter" in result.out


def test_a_model_folder_is_no_run(agentrl, make_run, tmp_path):
    make_run("calm-otter")
    model = tmp_path / "runs" / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen3"}', encoding="utf-8")
    assert [run["name"] for run in agentrl("runs", "list", "--json").json] == ["calm-otter"]
    refused = agentrl("runs", "show", "model")
    assert refused.code == 2
    assert "it is not a run directory" in refused.err


def test_a_file_that_vanishes_does_not_end_the_list(agentrl, make_run, tmp_path):
    make_run("calm-otter")
    other = tmp_path / "runs" / "elsewhere"
    (other / "logs").mkdir(parents=True)
    (other / "config.json").write_text('{"base_dir": "/", "config": {"store": {}}}', encoding="utf-8")
    (other / "logs" / "gone").symlink_to("nothing")  # as if it vanished after the folder was listed
    assert {run["name"] for run in agentrl("runs", "list", "--json").json} == {"calm-otter", "elsewhere"}


def test_no_runs_is_said(agentrl):
    result = agentrl("runs", "list")
    assert result.code == 0
    assert "no runs in" in result.out


def test_a_run_is_shown_with_voided_steps_and_components(agentrl, make_run):
    make_run("calm-otter")
    lines = agentrl("runs", "show", "calm-otter").out.splitlines()
    assert lines[0] == "run calm-otter: running"
    assert lines[1].split() == ["folder", "runs/calm-otter"]
    assert lines[3:6] == [
        "  steps       1 (1 voided), policy version 2",
        "  reward      1.000 in the last step",
        "  records     scored 1, failed(ValueError) 1",
    ]
    assert lines[6].startswith("  disk ")
    assert lines[7] == "  component   losses:grpo = agentrl-core==0.1.0 agentrl_core.losses.grpo:GRPO"
    assert [line.split() for line in lines[9:]] == [
        ["STEP", "VERSION", "REWARD", "RECORDS"],
        ["1", "1", "1.000", "1"],
        ["2", "2", "0.500", "1", "voided"],
    ]


def test_a_run_as_json_has_all_steps_and_null_for_nan(agentrl, make_run):
    make_run("calm-otter")
    run = agentrl("runs", "show", "calm-otter", "--json").json
    assert [(step["step"], step["voided"]) for step in run["all_steps"]] == [(1, False), (2, True)]
    assert run["all_steps"][0]["metrics"] == {"reward/mean": 1.0, "loss/value": None}
    assert run["outcomes"] == {"scored": 1, "failed(ValueError)": 1}
    assert run["config"] == {"seed": 0}


def test_resume_goes_on_in_the_run_s_folder_with_overrides(agentrl, make_run, resumed):
    folder = make_run("calm-otter")
    assert agentrl("runs", "resume", "calm-otter", "trainer.steps=9", "seed=1").code == 0
    assert agentrl("runs", "resume", str(folder)).code == 0
    (named, overrides), (by_path, none) = resumed.calls
    assert named.resolve() == by_path == folder
    assert (list(overrides), list(none)) == (["trainer.steps=9", "seed=1"], [])


def test_resume_fails_where_the_run_does_not_finish(agentrl, make_run, resumed):
    make_run("calm-otter")
    resumed.status = "failed"
    assert agentrl("runs", "resume", "calm-otter").code == 1


def test_resume_of_an_unknown_run_names_the_nearest(agentrl, make_run, resumed):
    make_run("calm-otter")
    result = agentrl("runs", "resume", "calm-ottr")
    assert result.code == 2
    assert "did you mean calm-otter?" in result.err
    assert not resumed.calls


def test_a_run_says_what_it_trains_by(agentrl, tmp_path):
    config = {
        "model": {"path": None, "use": "tiny", "size": "0.3M", "dtype": None},
        "loss": {"use": "minirl", "clip": 0.2, "corrections": []},
        "advantage": {"use": "leave_one_out"},
    }

    async def write():
        store = SQLiteStore(path=tmp_path / "runs" / "keen-wren" / "agentrl.db")
        await store.create_run(RunRow(id="keen-wren", created_at=1.0, status="running", config=config, components={}))
        await store.close()

    asyncio.run(write())
    lines = agentrl("runs", "show", "keen-wren").out.splitlines()
    assert lines[4:7] == [
        "  model       tiny (size 0.3M)",
        "  loss        minirl (clip 0.2)",
        "  advantage   leave_one_out",
    ]


@pytest.fixture
def gone():
    """The pid of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_run_shows_its_members_and_what_they_wait_for(agentrl, live_run, write, gone):
    folder, trainer = live_run()
    server = Member(run_id="calm-otter", role="serve", host="node7", pid=12)
    killed = Member(run_id="calm-otter", role="sample", pid=gone)

    async def act(store):
        await store.beat(trainer.id, {"version": 3, "waits_for": "groups: 2 of 4 are ready"})
        await store.join(server)
        await store.join(killed)
        await store.leave(server.id)

    write(folder, act)
    out = agentrl("runs", "show", "calm-otter").out
    start = out.index("MEMBER")
    rows = [line.split(maxsplit=5) for line in out[start:].splitlines()[1:4]]
    host = trainer.host
    assert rows == [
        ["train", "live", host, str(os.getpid()), "3", "groups: 2 of 4 are ready"],
        ["serve", "left", "node7", "12", "-", "-"],
        ["sample", "gone", host, str(gone), "-", "-"],
    ]
    assert [item["state"] for item in agentrl("runs", "show", "calm-otter", "--json").json["members"]] == [
        "live",
        "left",
        "gone",
    ]


def test_a_run_shows_groups_that_do_not_come_again_and_why(agentrl, live_run, write):
    folder, trainer = live_run()

    async def act(store):
        await store.admit("calm-otter", 1)
        claims = await store.claim_groups(
            "calm-otter",
            trainer.id,
            5,
            admission=Admission(max_head_offpolicyness=0, tasks_per_step=3),
            size=2,
            version=2,
            task_at=lambda index: f"t{index}",
        )
        claims = [claim for claim in claims if not claim.is_eval]
        record = Record(
            id="broken", run_id="calm-otter", task_id="t0", group_id=claims[0].group_id, sample_index=0, started_at=1.0
        )
        await store.add_record(record, member_id=trainer.id)
        await store.finish_record(attrs.evolve(record, outcome=Outcome.FAILED, reason="KeyError"))
        await store.finish_group(claims[0], usable=False)
        return claims

    claims = write(folder, act)
    facts = agentrl("runs", "show", "calm-otter", "--json").json["groups"]
    assert facts["states"]["dropped"] == 1
    assert facts["dead"] == [
        {
            "group": claims[0].group_id,
            "task": "t0",
            "index": 0,
            "state": "dropped",
            "why": "too few scored records: failed(KeyError) 1",
        }
    ]
    assert "runs requeue calm-otter GROUP" in agentrl("runs", "show", "calm-otter").out
