"""agentrl runs: what there is, how far each came, and going on."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from types import ModuleType

import pytest

from agentrl_core.api.stores import RunRow
from agentrl_core.api.trackers import RunSummary
from agentrl_core.stores.sqlite import SQLiteStore


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
    assert lines[3:7] == [
        "  steps       1 (1 voided), policy version 2",
        "  reward      1.000 in the last step",
        "  records     scored 1, failed(ValueError) 1",
        "  component   losses:grpo = agentrl-core==0.1.0 agentrl_core.losses.grpo:GRPO",
    ]
    assert [line.split() for line in lines[8:]] == [
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


@pytest.fixture
def resumed(monkeypatch):
    """Take the place of training; gives what it was called with, and ends with the status in `status`."""
    calls = []
    module = ModuleType("agentrl_core.run")
    module.status = "finished"

    def resume(run_dir, overrides):
        calls.append((run_dir, overrides))
        return RunSummary(
            name=run_dir.name,
            directory=str(run_dir),
            status=module.status,
            steps=2,
            version=3,
            evals=(),
            outcomes={},
            llm_calls=0,
            cpu_seconds={},
            wall_s=0.0,
        )

    module.resume = resume
    module.calls = calls
    monkeypatch.setitem(sys.modules, "agentrl_core.run", module)
    return module


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
