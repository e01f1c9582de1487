"""Servers, samplers and a trainer as processes: they train together, and any of them may be killed."""

import asyncio
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Outcome

pytestmark = pytest.mark.slow

QUICKSTART = Path(__file__).parents[3] / "cookbook" / "quickstart"
# Not shorter: a busy machine must not make a live process late.
SHORT_LEASE = "rollout.lease_s=20"
HOLDING = """
import asyncio
import os

from letters import Agent


class Holding(Agent):
    async def run(self, data, *, base_url, api_key, http_client):
        if os.environ.get("HOLD"):
            print("holding an episode", flush=True)
            await asyncio.Event().wait()
        return await super().run(data, base_url=base_url, api_key=api_key, http_client=http_client)
"""
NO_TORCH = (
    "import sys\n"
    "from agentrl_core.cli import main\n"
    "code = main(sys.argv[1:])\n"
    "print([name for name in ('torch', 'transformers') if name in sys.modules])\n"
    "sys.exit(code)\n"
)


def stored(folder):
    """Return members, groups, records and live steps of the run."""

    async def read():
        store = SQLiteStore.read(folder / "runs" / "r" / "agentrl.db")
        try:
            steps = [step for step in await store.steps("r") if not step.voided]
            return await store.members("r"), await store.groups("r"), await store.records("r"), steps
        finally:
            await store.close()

    return asyncio.run(read())


def check_whole(folder, *, steps, but=()):
    """Every step is there once, every trained record too, and nothing is left open; return the members.

    Members whose process is in `but` may still count as live: the run has ended before their lease.
    """
    members, groups, records, live = stored(folder)
    assert [step.step for step in live] == list(range(1, steps + 1))
    trained = [record for step in live for record in step.records]
    assert len(trained) == len(set(trained))
    outcomes = {record.id: record.outcome for record in records}
    assert {outcomes[record] for record in trained} == {Outcome.SCORED}
    assert but or Outcome.RUNNING not in outcomes.values()
    assert [group for group in groups if group.state == "trained" and group.member_id] == []
    still = [member.name for member in members if member.state == "live" and member.pid not in but]
    assert still == [], "all have left, or were declared lost"
    taken = [group for step in live for group in step.groups]
    assert len(taken) == len(set(taken))
    return members


def test_a_run_goes_on_while_samplers_are_killed_ended_and_added(written, role, tmp_path):
    (tmp_path / "holding.py").write_text(HOLDING, encoding="utf-8")
    written(workflow="holding.py:Holding", trainer={"steps": 8, "save_steps": 2})
    serve, train = role("serve", SHORT_LEASE), role("train", SHORT_LEASE)
    killed = role("sample", SHORT_LEASE, HOLD="1")
    killed.until("holding an episode")
    ended = role("sample", SHORT_LEASE)
    ended.until("has joined run")
    killed.kill()
    train.until_step(2)
    ended.signal(signal.SIGTERM)
    assert ended.ends() == 128 + signal.SIGTERM
    assert "has left run 'r'" in ended.told
    added = role("sample", SHORT_LEASE)
    assert train.ends() == 0, train.told
    assert added.ends() == 0, added.told
    assert serve.ends() == 0, serve.told
    members = check_whole(tmp_path, steps=8)
    assert sorted((member.role, member.state) for member in members) == [
        ("sample", "left"),
        ("sample", "left"),
        ("sample", "lost"),
        ("serve", "left"),
        ("train", "left"),
    ]
    _, groups, records, _ = stored(tmp_path)
    assert any(group.takeovers for group in groups)
    assert any(record.reason == "lost" for record in records)


def test_a_trainer_that_was_killed_goes_on_with_the_same_server_and_sampler(written, role, tmp_path):
    written(trainer={"steps": 6, "save_steps": 2})
    serve, sample, train = role("serve", SHORT_LEASE), role("sample", SHORT_LEASE), role("train", SHORT_LEASE)
    train.until_step(3)
    train.kill()
    again = role("train", SHORT_LEASE)
    assert again.ends() == 0, again.told
    assert "resumed after step" in again.told
    assert (serve.ends(), sample.ends()) == (0, 0), serve.told + sample.told
    check_whole(tmp_path, steps=6)


def test_a_trainer_that_was_stopped_leaves_its_run_to_be_resumed(written, role, tmp_path):
    written(trainer={"steps": 6, "save_steps": 100})
    serve, sample, train = role("serve"), role("sample"), role("train")
    train.until_step(2)
    train.signal(signal.SIGTERM)
    assert train.ends() == 128 + signal.SIGTERM
    again = role("train")
    assert again.ends() == 0, again.told
    assert re.search(r"resumed after step [2-5]", again.told)
    assert (serve.ends(), sample.ends()) == (0, 0), serve.told + sample.told
    check_whole(tmp_path, steps=6)


def test_a_server_that_was_killed_is_replaced_by_another_one(written, role, tmp_path):
    written(trainer={"steps": 6, "save_steps": 2})
    serve, sample, train = role("serve", SHORT_LEASE), role("sample", SHORT_LEASE), role("train", SHORT_LEASE)
    train.until_step(2)
    serve.kill()
    other = role("serve", SHORT_LEASE)
    assert train.ends() == 0, train.told
    assert (other.ends(), sample.ends()) == (0, 0), other.told + sample.told
    assert "resume the run" not in sample.told, "the trainer has left, but the run has ended"
    members = check_whole(tmp_path, steps=6)
    assert [member.state for member in members if member.role == "serve"] == ["lost", "left"]


def test_the_quickstart_learns_with_a_server_and_samplers_that_come_and_go(role, tmp_path):
    folder = shutil.copytree(QUICKSTART, tmp_path / "quickstart")
    config = str(folder / "config.yaml")
    command = [sys.executable, "-c", NO_TORCH, "sample", config, "--name", "r", SHORT_LEASE]
    serve, killed = role("serve", SHORT_LEASE, config=config), role("sample", SHORT_LEASE, config=config)
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as sample:
        try:
            train = role("train", SHORT_LEASE, config=config)
            train.until_step(2)
            killed.kill()
            train.until_step(3)
            added = role("sample", SHORT_LEASE, config=config)
            assert train.ends() == 0, train.told
            assert (serve.ends(), added.ends()) == (0, 0), serve.told + added.told
            told = sample.communicate(timeout=600)[0]
        finally:
            sample.kill()
    assert sample.returncode == 0, told
    assert told.endswith("[]\n"), "a sampler imports neither torch nor transformers"
    *_, last = [
        event["rewards"]
        for line in (tmp_path / "runs/r/metrics.jsonl").read_text(encoding="utf-8").splitlines()
        if (event := json.loads(line))["event"] == "evaluated"
    ]
    assert last["heldout"] >= 0.9
    _, _, _, steps = stored(tmp_path)
    check_whole(tmp_path, steps=len(steps), but=[killed.pid])
