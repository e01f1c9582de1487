"""A run that trains on agents of another kind of process: they know its address and its admin key, no more."""

import asyncio
import stat
from pathlib import Path

import pytest

from agentrl_core import Trainer
from agentrl_core.errors import ConfigError
from agentrl_core.stores.sqlite import SQLiteStore

OUTSIDE = '''
"""Tells agents where the run is; they work until it is over, each in a thread of its own."""
import re
import threading
from pathlib import Path

import httpx2

from agentrl_core.trackers.jsonl import JsonlTracker


def work(url, key):
    admin = {"authorization": f"Bearer {key}"}
    with httpx2.Client(base_url=url, timeout=20, trust_env=False) as client:
        try:
            while True:
                opened = client.post("/rl/start_session", json={"task_id": "haiku"}, headers=admin)
                if opened.status_code == 429:
                    threading.Event().wait(0.02)
                    continue
                mine = {"x-api-key": opened.json()["api_key"]}
                messages = opened.json()["task"]["data"]["messages"] or [{"role": "user", "content": "Say a."}]
                reply = client.post("/v1/messages", json={"messages": messages, "max_tokens": 6}, headers=mine).json()
                text = "".join(block.get("text", "") for block in reply["content"])
                reward = sum(map(str.isalpha, text)) / 6
                client.post("/rl/end_session", headers=mine)
                client.post("/rl/set_reward", json={"reward": reward}, headers=mine)
        except (httpx2.TransportError, KeyError):
            return  # the run is over


class Outside(JsonlTracker):
    def notice(self, message):
        super().notice(message)
        if found := re.search(r"POST (\\S+)/rl/start_session; the admin key is in (.+)", message):
            self.threads = [
                threading.Thread(target=work, args=(found[1], Path(found[2]).read_text())) for _ in range(4)
            ]
            for thread in self.threads:
                thread.start()

    def close(self):
        for thread in self.threads:
            thread.join()
        super().close()
'''


@pytest.fixture
def online(project, monkeypatch):
    monkeypatch.delenv("AGENTRL_ADMIN_KEY", raising=False)

    def make(**sections):
        Path("outside.py").write_text(OUTSIDE, encoding="utf-8")
        rollout = {"agent": {"mode": "online"}, **sections.pop("rollout", {})}
        config = project(rollout=rollout, trackers=["outside.py:Outside"], **sections)
        del config["workflow"]
        return config

    return make


def test_a_run_trains_on_agents_that_open_sessions_by_themselves(online):
    summary = Trainer(online()).train()
    assert (summary.status, summary.steps) == ("finished", 2)
    assert summary.outcomes["scored"] >= 16
    assert summary.trained_tokens == summary.exact_tokens > 0
    directory = Path(summary.directory)
    key = (directory / "admin_key").read_text()
    assert stat.S_IMODE((directory / "admin_key").stat().st_mode) == 0o600
    written = "".join(path.read_text(errors="replace") for path in directory.rglob("*.log")) + "".join(
        path.read_text() for path in directory.glob("*.json*")
    )
    assert key not in written
    assert "admin_key" in written

    async def read():
        store = SQLiteStore.read(directory / "agentrl.db")
        episodes = [await store.episode(record.id) for record in await store.records(summary.name)]
        rows = await store.sessions(summary.name)
        await store.close()
        return episodes, rows

    episodes, rows = asyncio.run(read())
    assert {item.api for episode in episodes for item in episode.interactions} == {"messages"}
    assert {row.state for row in rows} == {"closed"}


def test_agents_may_say_what_they_work_on(online):
    summary = Trainer(online(data={"train": None})).train()
    assert (summary.status, summary.steps) == ("finished", 2)

    async def read():
        store = SQLiteStore.read(Path(summary.directory) / "agentrl.db")
        tasks = await store.tasks(summary.name)
        await store.close()
        return [task.id for task in tasks]

    assert asyncio.run(read()) == ["haiku"]


def test_a_run_of_its_own_agent_needs_tasks(project):
    with pytest.raises(ConfigError, match=r"data.train: the tasks are missing; set a JSONL file"):
        Trainer(project(data={"train": None})).train()


def test_a_workflow_of_its_own_is_not_what_an_online_run_wants(online):
    with pytest.raises(ConfigError, match=r"workflow: with rollout.agent.mode online the run starts no agent"):
        Trainer({**online(), "workflow": "letters.py:Agent"}).train()


def test_an_online_gateway_that_others_reach_needs_a_chosen_key(online):
    with pytest.raises(ConfigError, match=r"gateway.host: 0\.0\.0\.0 can be reached from other machines"):
        Trainer(online(gateway={"host": "0.0.0.0"})).train()
