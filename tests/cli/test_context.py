"""A run with a context policy, from its config to the commands that look back: metrics, trace show, trace replay."""

import json

import pytest
from tests.cli.audited import judge

from agentrl_core.cli import main
from agentrl_testing.policy import toy_policy

PROJECT = '''
"""An agent that sends its whole history four times, and a policy that replaces it by two notes."""


class Agent:
    async def run(self, data, *, base_url, api_key, http_client):
        messages, headers = [*data["messages"]], {"authorization": f"Bearer {api_key}"}
        for turn in range(4):
            body = {"model": "default", "messages": messages, "max_tokens": 6}
            reply = await http_client.post(f"{base_url}/v1/chat/completions", json=body, headers=headers)
            reply.raise_for_status()
            messages += [reply.json()["choices"][0]["message"], {"role": "user", "content": f"go on {turn}"}]
        texts = "".join(message["content"] for message in messages if message["role"] == "assistant")
        return {3: sum(map(str.isalpha, texts)) / 24}


class Notes:
    upstreams = ("judge",)

    def __init__(self, *, limit: float):
        self.limit = limit

    async def compact(self, messages, usage, ask):
        if usage.prompt_tokens <= self.limit * usage.context_length:
            return None
        own = await ask([*messages, {"role": "user", "content": "Note."}], max_tokens=5)
        other = await ask([{"role": "user", "content": "Note."}], upstream="judge")
        return [messages[0], {"role": "user", "content": f"{own['content']} {other['content']}"}]
'''


@pytest.fixture(scope="module")
def compacted_project(tmp_path_factory):
    """A project whose run `calm-otter` has made one step with compacted histories."""
    folder = tmp_path_factory.mktemp("compacted")
    toy_policy(folder / "policy", seed=0)
    (folder / "parts.py").write_text(PROJECT, encoding="utf-8")
    (folder / "tasks.jsonl").write_text('{"id": "t", "query": "Say it.", "answer": "it"}\n', encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch, judge() as url:
        config = {
            "name": "calm-otter",
            "model": {"path": "policy"},
            "data": {"train": "tasks.jsonl"},
            "workflow": "parts.py:Agent",
            "context": {"use": "parts.py:Notes", "limit": 0.12},
            "gateway": {"upstreams": {"judge": {"url": url}}},
            "rollout": {"group_size": 2, "tasks_per_step": 1, "timeout_s": 20.0},
            "trainer": {"steps": 1, "lr": 1e-3, "warmup_steps": 0},
            "filters": [],
            "trackers": ["jsonl"],
        }
        (folder / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
        patch.chdir(folder)
        assert main(["run", "config.yaml"]) == 0
    return folder


@pytest.fixture
def records(agentrl, compacted_project, monkeypatch):
    monkeypatch.chdir(compacted_project)
    return agentrl("trace", "list", "--limit", "0", "--json").json


def test_metrics_count_compactions(records, compacted_project):
    lines = (compacted_project / "runs" / "calm-otter" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    (metrics,) = [event["metrics"] for event in map(json.loads, lines) if event["event"] == "step_finished"]
    assert metrics["rollout/compactions_per_episode"] >= 1
    assert metrics["rollout/tokens_discarded_per_episode"] > 0


def test_compactions_are_shown(agentrl, records):
    shown = agentrl("trace", "show", records[0]["id"]).out
    assert "compacted by the context policy parts.py:Notes, number 1: " in shown
    assert "asked by  the context policy parts.py:Notes" in shown
    assert "answered by judge" in shown


def test_turns_of_a_reward_are_the_agents_own(agentrl, records):
    # The reward is that of turn 3, counted without the policy's question and the upstream's answer.
    shown = agentrl("trace", "show", records[0]["id"]).out
    rewarded = [line for line in shown.splitlines() if ", reward " in line and line.startswith(("[", " "))]
    assert len(rewarded) == 1
    assert "chatcmpl-" in rewarded[0]


def test_a_record_with_compactions_replays_identically(agentrl, records):
    for record in records:
        done = agentrl("trace", "replay", record["id"])
        assert f"record {record['id']}: identical: " in done.out, done.out
        assert done.code == 0


def test_the_digests_of_such_records_hold(agentrl, records):
    done = agentrl("trace", "verify")
    assert done.code == 0, done.out
