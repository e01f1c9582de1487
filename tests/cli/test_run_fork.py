"""agentrl runs fork: the folder of the new run."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from agentrl_core.run.directory import RunDirectory
from agentrl_core.run.fork import fork
from agentrl_core.weights.manifest import write_manifest
from agentrl_testing.policy import toy_policy


@pytest.fixture(scope="module")
def policy_dir(tmp_path_factory):
    return toy_policy(tmp_path_factory.mktemp("policy"), architecture="qwen3", seed=0)


@pytest.fixture
def forkable(ended, tmp_path, monkeypatch, policy_dir):
    """Make an ended run with a warm start, whose checkpoints of steps 0 and 1 hold a real policy."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text("async def agent(data, base_url):\n    return 1.0\n", encoding="utf-8")
    (tmp_path / "tasks.jsonl").write_text('{"id": "t", "query": "?", "answer": "!"}\n', encoding="utf-8")
    sections = {
        "workflow": str(tmp_path / "agent.py:agent"),
        "data": {"train": str(tmp_path / "tasks.jsonl"), "default_scorer": "exact_match"},
        "trainer": {"lr": 0.5},
        "warm_start": {"data": "demos.jsonl"},
    }
    folder = ended("calm-otter", config=sections)
    for step in (0, 1):
        path = RunDirectory(folder).checkpoints / f"step-{step}"
        shutil.copytree(policy_dir, path)
        (path / "optimizer.pt").write_bytes(b"state of Adam")
        (path / "trainer_state.json").write_text("{}", encoding="utf-8")
        write_manifest(path, step=step, version=step)
    return folder


def test_a_fork_has_the_policy_and_config_of_its_checkpoint_and_names_it(agentrl, forkable, policy_dir):
    folder = forkable
    result = agentrl(
        "runs", "fork", "calm-otter", "trainer.steps=7", "--name", "child", "--step", "0", "--no-start", "--json"
    )
    assert result.code == 0, result.err
    child = RunDirectory(folder.with_name("child"))
    digest = json.loads((folder / "checkpoints/step-0/manifest.json").read_text(encoding="utf-8"))["blake2b"]
    assert result.json["origin"] == child.origin == f"run calm-otter, step 0, digest {digest}"
    config, base_dir = child.read_snapshot()
    assert (config["name"], config["trainer"]["steps"], config["trainer"]["lr"]) == ("child", 7, 0.5)
    assert (config["model"]["path"], config["warm_start"], base_dir) == (str(child.model), None, folder.parent)
    assert {path.name for path in child.model.iterdir()} == {path.name for path in policy_dir.iterdir()}
    assert child.identity != RunDirectory(folder).identity
    # Shared with the checkpoint, so that a fork of a large model costs no space.
    shared = folder / "checkpoints/step-0/model.safetensors"
    assert (child.model / "model.safetensors").samefile(shared)


def test_a_fork_of_a_damaged_or_missing_checkpoint_is_refused(agentrl, forkable):
    (forkable / "checkpoints/step-1/model.safetensors").write_bytes(b"other")
    damaged = agentrl("runs", "fork", "calm-otter", "--name", "child", "--no-start")
    assert damaged.code == 1
    assert "is not a complete checkpoint" in damaged.err
    missing = agentrl("runs", "fork", "calm-otter", "--step", "5", "--no-start")
    assert (missing.code, missing.err) == (
        2,
        "error: run 'calm-otter' has no checkpoint of step 5; it has those of 0, 1\n",
    )
    assert not forkable.with_name("child").exists()


@pytest.mark.parametrize("override", ["trainer.steps=none", "model.path=elsewhere", "loss=nonsense"])
def test_a_fork_that_could_not_run_leaves_no_folder(agentrl, forkable, override):
    result = agentrl("runs", "fork", "calm-otter", "--step", "0", "--name", "child", "--no-start", override)
    assert result.code == 2
    assert not forkable.with_name("child").exists()


def test_a_fork_across_file_systems_copies(forkable, policy_dir, monkeypatch):
    def refuse(*_):
        raise OSError("cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    child = fork(forkable, step=0, name="child")
    assert (child.model / "model.safetensors").read_bytes() == (policy_dir / "model.safetensors").read_bytes()
    assert child.model.stat().st_mode & 0o077 == 0
