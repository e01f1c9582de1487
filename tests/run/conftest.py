"""Fixtures for tests of whole runs: a small project with a random policy, five tasks and an agent over plain HTTP."""

import json
from pathlib import Path

import pytest

from agentrl_testing.policy import toy_policy

AGENT = '''
"""Rewards a reply for how many of its characters are letters, so that there is always something to learn."""
import asyncio


async def ask(data, base_url, api_key, http_client, **extra):
    body = {"model": "default", "messages": data["messages"], "max_tokens": 6, **extra}
    reply = await http_client.post(
        f"{base_url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {api_key}"}
    )
    reply.raise_for_status()
    return reply.json()["choices"][0]["message"].get("content") or ""


class Agent:
    async def run(self, data, *, base_url, api_key, http_client):
        text = await ask(data, base_url, api_key, http_client)
        return sum(map(str.isalpha, text)) / 6


class Silent:
    async def run(self, data):
        return 1.0


class NotFinite(Agent):
    async def run(self, data, *, base_url, api_key, http_client):
        await ask(data, base_url, api_key, http_client)
        return float("nan")


class Cold(Agent):
    async def run(self, data, *, base_url, api_key, http_client):
        text = await ask(data, base_url, api_key, http_client, temperature=0)
        return sum(map(str.isalpha, text)) / 6


class Constant(Agent):
    async def run(self, data, *, base_url, api_key, http_client):
        await ask(data, base_url, api_key, http_client)
        return 0.5


class Unscored(Agent):
    async def run(self, data, *, base_url, api_key, http_client):
        await ask(data, base_url, api_key, http_client)


class Stuck(Agent):
    async def run(self, data, *, base_url, api_key, http_client):
        await ask(data, base_url, api_key, http_client)
        await asyncio.Event().wait()
'''


@pytest.fixture(scope="session")
def policy_dir(tmp_path_factory) -> Path:
    return toy_policy(tmp_path_factory.mktemp("policy"), architecture="qwen3", seed=0)


@pytest.fixture
def project(tmp_path, policy_dir, monkeypatch, faulty_agent):
    """`project(overrides…)` is a config as a mapping; the working directory holds the agent and the tasks."""
    (tmp_path / "letters.py").write_text(AGENT + faulty_agent("Agent"), encoding="utf-8")
    rows = [{"id": f"t{i}", "query": f"Say {word}.", "answer": word} for i, word in enumerate("abcde")]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def make(agent: str = "Agent", **sections):
        config = {
            "model": {"path": str(policy_dir)},
            "data": {"train": "tasks.jsonl", "default_scorer": "exact_match"},
            "workflow": f"letters.py:{agent}",
            "rollout": {"group_size": 4, "tasks_per_step": 2, "timeout_s": 20.0},
            "trainer": {"steps": 2, "lr": 1e-3, "save_steps": 1, "warmup_steps": 0},
            "trackers": ["jsonl"],
        }
        for name, values in sections.items():
            config[name] = {**config.get(name, {}), **values} if isinstance(values, dict) else values
        return config

    return make
