"""Runs that learn nothing say so; runs without steps only evaluate."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agentrl_core import Trainer
from agentrl_core.cli.run_facts import group_facts
from agentrl_core.errors import ConfigError
from agentrl_core.stores.sqlite import SQLiteStore


@pytest.fixture
def heldout(project):
    Path("heldout.jsonl").write_text(
        json.dumps({"id": "h0", "query": "Say x.", "answer": "x"}) + "\n", encoding="utf-8"
    )
    return "heldout.jsonl"


def test_a_run_without_any_signal_has_learned_nothing(project, capsys):
    summary = Trainer(project("Constant", name="flat", trackers=["console"])).train()
    assert (summary.status, summary.steps) == ("finished", 2)
    assert summary.nothing_learned.startswith("nothing was learned: no step changed the weights, which are those of")
    assert "every reward in 2 groups is 0.5 (returned by letters.py:Constant)" in summary.nothing_learned
    out = capsys.readouterr().out
    assert out.count("every reward in 2 groups is 0.5") == 1
    assert "untrained model" in out


def test_groups_that_were_left_out_are_not_said_to_be_trained(project):
    folder = Path(Trainer(project("Constant", name="flat")).train().directory)
    store = SQLiteStore.read(folder / "agentrl.db")
    groups, records, steps = (asyncio.run(read("flat")) for read in (store.groups, store.records, store.steps))
    assert group_facts(groups, records, steps, 0)["states"] == {"filtered": 4}
    asyncio.run(store.close())


def test_a_run_that_learned_says_nothing_of_it(project):
    summary = Trainer(project(name="learns", trainer={"steps": 1})).train()
    assert summary.nothing_learned == ""


def test_without_steps_the_model_is_only_evaluated(project, heldout, policy_dir):
    config = project(name="measured", trainer={"steps": 0}, data={"eval": heldout})
    config |= {"warm_start": {"data": "no-demonstrations.jsonl"}, "trackers": ["console"]}
    Path("no-demonstrations.jsonl").write_text(
        '{"messages": [{"role": "assistant", "content": "x"}]}\n', encoding="utf-8"
    )
    summary = Trainer(config).train()
    assert (summary.status, summary.steps, summary.version, summary.nothing_learned) == ("finished", 0, 0, "")
    assert [(report.step, report.records) for report in summary.evals] == [(0, {"eval": 1})]
    assert summary.outcomes == {"scored": 1}
    assert list((Path(summary.directory) / "checkpoints").iterdir()) == []


def test_without_steps_there_must_be_something_to_evaluate(project):
    with pytest.raises(ConfigError, match=r"trainer\.steps: 0 only evaluates; set the tasks for that"):
        Trainer(project(name="empty", trainer={"steps": 0})).train()


class Provider(BaseHTTPRequestHandler):
    """Model server of another party that always says "x"."""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": "x"}
        body = {"id": "c", "object": "chat.completion", "created": 0, "model": "gpt", "choices": [
            {"index": 0, "message": message, "finish_reason": "stop"}]}  # fmt: skip
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.fixture
def provider():
    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


async def ask_provider(data, *, base_url, api_key, http_client):
    body = {"model": "gpt", "messages": data["messages"]}
    headers = {"authorization": f"Bearer {api_key}"}
    (await http_client.post(f"{base_url}/v1/chat/completions", json=body, headers=headers)).raise_for_status()


def test_without_steps_a_provider_gives_its_baseline(project, heldout, provider):
    upstreams = {"gpt": {"url": provider, "proxy": "direct"}}
    config = project(name="baseline", trainer={"steps": 0}, data={"eval": heldout}, gateway={"upstreams": upstreams})
    summary = Trainer(config).train(workflow=ask_provider)
    assert [report.rewards for report in summary.evals] == [{"eval": 1.0}]
    assert (summary.status, summary.outcomes) == ("finished", {"scored": 1})
