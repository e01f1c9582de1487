"""A small project that is really trained, for tests of the commands that look back at a run."""

import json

import pytest

from agentrl_core.cli import main
from agentrl_testing.policy import toy_policy

AGENT = '''
"""Two turns with a tool's result between them, and two calls at once about it; the reward follows from the replies."""
import asyncio
from pathlib import Path


def told(name):
    """What a test changes after the run."""
    path = Path(__file__).with_name(name)
    return path.read_text() if path.exists() else ""


class Agent:
    async def run(self, data, *, base_url, api_key, http_client, record_id):
        async def ask(messages, **extra):
            body = {"model": "default", "messages": messages, "max_tokens": 6, **extra}
            reply = await http_client.post(
                f"{base_url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {api_key}"}
            )
            reply.raise_for_status()
            return reply.json()["choices"][0]["message"]

        messages = [{"role": "system", "content": "Speak."}, *data["messages"]]
        first = await ask(messages)
        messages += [first, {"role": "user", "content": f"The door is {record_id[:4]}{told('door.txt')}."}]
        again = {"role": "user", "content": "And in short?"}
        second, third = await asyncio.gather(ask(messages), ask([*messages[:2], again]))
        if told("more.txt"):
            await ask([*messages, second, again])
        text = "".join(reply.get("content") or "" for reply in (first, second, third))
        return sum(map(str.isalpha, text)) / 18 + float(told("bonus.txt") or 0)
'''
CONFIG = {
    "name": "calm-otter",
    "model": {"path": "policy"},
    "data": {"train": "tasks.jsonl", "eval": "tasks.jsonl"},
    "workflow": "speaker.py:Agent",
    "rollout": {"group_size": 2, "tasks_per_step": 2, "timeout_s": 20.0},
    "trainer": {"steps": 3, "lr": 1e-3, "save_steps": 2, "warmup_steps": 0},
    "eval": {"every": 3, "tasks": 1},
    "filters": [],
    "trackers": ["jsonl"],
}


@pytest.fixture(scope="session")
def trained_project(tmp_path_factory):
    """The folder of a project whose run `calm-otter` has made three steps; do not write into it."""
    folder = tmp_path_factory.mktemp("audited")
    toy_policy(folder / "policy", architecture="qwen3", seed=0)
    (folder / "speaker.py").write_text(AGENT, encoding="utf-8")
    rows = [{"id": f"t{i}", "query": f"Say {word}.", "answer": word} for i, word in enumerate("abcd")]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "config.yaml").write_text(json.dumps(CONFIG), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["run", "config.yaml"]) == 0
    return folder
