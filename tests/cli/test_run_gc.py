"""agentrl runs gc."""

from __future__ import annotations

import os
import time

from tests.cli.checkpoints import checkpoint

from agentrl_core.run.directory import RunDirectory


def names(folder):
    return sorted(path.name for path in RunDirectory(folder).checkpoints.iterdir())


def test_only_what_no_resumption_needs_is_removed(agentrl, ended):
    folder = ended("calm-otter", (0, 0), (1, 1), (2, 2))
    for path in ("weights/version-1", ".model.draft", "model", "reference", "checkpoints/.step-9.draft"):
        (folder / path).mkdir(parents=True)
    (folder / "logs").mkdir()
    for log in ("run_0.log", "run_0.log.1"):
        (folder / "logs" / log).touch()
    result = agentrl("runs", "gc", "calm-otter", "--yes", "--json").json
    # Step 2 is voided, so a run cannot resume from it; step 1 is the newest that it can.
    assert names(folder) == ["step-1", "step-2"]
    assert {(item["kind"], os.path.relpath(item["path"], folder)) for item in result["items"]} == {
        ("checkpoint", "checkpoints/step-0"),
        ("published weights", "weights/version-1"),
        ("rotated log", "logs/run_0.log.1"),
        ("half-written", ".model.draft"),
        ("half-written", "checkpoints/.step-9.draft"),
    }
    assert {path.name for path in folder.iterdir()} >= {"model", "reference", "agentrl.db", "config.json", "logs"}
    assert agentrl("runs", "gc", "calm-otter").out == "nothing to remove\n"


def test_nothing_is_removed_where_no_checkpoint_is_usable(agentrl, ended):
    folder = ended("calm-otter", (2, 2), (3, 3))
    (folder / "checkpoints/step-3/manifest.json").write_text("{}", encoding="utf-8")
    assert agentrl("runs", "gc", "calm-otter", "--yes", "--json").json["items"] == []
    assert names(folder) == ["step-2", "step-3"]


def test_a_checkpoint_that_another_run_begins_from_stays(agentrl, ended):
    folder = ended("calm-otter", (0, 0), (1, 1))
    ended("brisk-heron", config={"model": {"path": "calm-otter/checkpoints/step-0"}})
    assert agentrl("runs", "gc", "--all", "--yes").code == 0
    assert names(folder) == ["step-0", "step-1"]


def test_nothing_is_removed_unasked(agentrl, ended):
    folder = ended("calm-otter", (0, 0), (1, 1))
    looked = agentrl("runs", "gc", "calm-otter", "--dry-run")
    assert looked.out.splitlines()[-1].startswith("1 to remove, ")
    refused = agentrl("runs", "gc", "calm-otter")
    assert (refused.code, refused.err) == (
        2,
        "error: nothing is removed: give --yes to remove, or --dry-run to only look\n",
    )
    assert names(folder) == ["step-0", "step-1"]


def test_live_runs_are_left_alone(agentrl, live_run):
    folder, _ = live_run()
    checkpoint(folder, 0, 0)
    checkpoint(folder, 1, 1)
    refused = agentrl("runs", "gc", "calm-otter", "--yes")
    assert refused.code == 2
    assert "run calm-otter is running; only ended runs are tidied up" in refused.err
    all_ = agentrl("runs", "gc", "--all", "--yes")
    assert (all_.code, all_.err.startswith("left out: run calm-otter is running")) == (0, True)
    assert names(folder) == ["step-0", "step-1"]


def test_a_run_that_another_process_resumes_meanwhile_is_left_alone(agentrl, ended):
    folder = ended("calm-otter", (0, 0), (1, 1))
    with RunDirectory(folder).locked():
        assert "is being trained by process" in agentrl("runs", "gc", "calm-otter", "--yes").err
    assert names(folder) == ["step-0", "step-1"]


def test_young_runs_stay_with_older_than(agentrl, ended):
    folder = ended("calm-otter", (0, 0), (1, 1))
    assert agentrl("runs", "gc", "--all", "--older-than", "1h", "--yes").out == "nothing to remove\n"
    old = time.time() - 7200
    for path in (folder / "agentrl.db", *folder.glob("agentrl.db-wal")):
        os.utime(path, (old, old))
    assert agentrl("runs", "gc", "--all", "--older-than", "1h", "--yes").code == 0
    assert names(folder) == ["step-1"]
    assert "expected a number with d, h, min or s" in agentrl("runs", "gc", "--all", "--older-than", "soon").err
    assert "give the name of one run, or --all" in agentrl("runs", "gc").err
