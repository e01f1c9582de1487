"""`agentrl doctor` finds faults and says how to fix them."""

import json
import re
import socket

import pytest

from agentrl_core.run import doctor, resources
from agentrl_core.run.doctor import examine
from agentrl_testing.policy import toy_policy

AGENT = """
class Agent:
    async def run(self, data, *, base_url, api_key, http_client):
        reply = await http_client.post(
            f"{base_url}/v1/chat/completions",
            headers={"authorization": f"Bearer {api_key}"},
            json={"model": "default", "messages": data["messages"], "max_tokens": 4},
        )
        reply.raise_for_status()
        return 0.25

class Broken(Agent):
    async def run(self, data):
        raise ValueError("there is no such tool")

class Idle(Agent):
    async def run(self, data):
        return 1.0

class ToolUser(Agent):
    async def run(self, data, *, base_url, api_key, http_client):
        reply = await http_client.post(
            f"{base_url}/v1/chat/completions",
            headers={"authorization": f"Bearer {api_key}"},
            json={
                "messages": data["messages"],
                "max_tokens": 4,
                "tools": [{"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}],
            },
        )
        reply.raise_for_status()
        return 0.25
"""
SERVER = """
class Server:
    isolation = "shared"
    async def start(self): pass
    async def open(self, episode): pass
    async def close(self): pass
    async def examine(self, tasks):
        return [f"{task.id}: nobody can solve it" for task in tasks]
"""
WITHOUT_TOOLS = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
CONFIG = """
model: {use: tiny, size: 0.1M, vocab_size: 300, context_length: 256}
data: {train: train.jsonl}
workflow: agent.py:Agent
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row = {"id": "t", "messages": [{"role": "user", "content": "Hello there."}]}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def wrong(findings):
    return [(finding.check, finding.told, finding.fix) for finding in findings if not finding.ok]


def test_a_sound_config_has_no_finding_and_leaves_nothing_behind(config, tmp_path):
    findings = list(examine(config))
    assert wrong(findings) == []
    order = list(dict.fromkeys(finding.check for finding in findings))
    installed = ["versions", "plugins", "port", "disk"]
    assert order == [*installed, "config", "agent", "device", "store", "model", "template", "call", "memory"]
    told = {finding.check: finding.told for finding in findings}
    assert told["call"].startswith("task 't': 1 LLM call in ")
    assert told["call"].endswith(" s, reward 0.25 before any training")
    assert "learner on cpu in float32, 1 thread; engine on cpu in float32, 1 thread" in told["device"]
    assert told["memory"].startswith("cpu: about ")
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}  # which is Python's
    assert left == {"agent.py", "config.yaml", "train.jsonl"}


def test_without_a_config_the_installation_is_checked():
    assert [finding.check for finding in examine()] == ["versions", "plugins", "port"]


@pytest.mark.parametrize(
    ("agent", "told"),
    [
        (
            "Broken",
            "task 't': 0 LLM calls in N s, failed (ValueError): ValueError: there is no such tool (agent.py:",
        ),
        ("Idle", "task 't': 0 LLM calls in N s, rejected (no_llm_call): the agent returned without an LLM call"),
    ],
)
def test_an_agent_that_fails_is_told_with_its_reason(agent, told, config):
    ((check, found, fix),) = wrong(examine(config, [f"workflow=agent.py:{agent}"]))
    assert check == "call"
    assert re.sub(r"\bin \d+\.\d s\b", "in N s", found).startswith(told)
    assert fix == "correct the agent or its scorer, and try again until one episode ends with a reward"


def test_all_that_is_wrong_with_a_config_is_told_at_once(config):
    found = wrong(examine(config, ["workflow=agent.py:Agnet", "loss.use=gpro", "data.train=absent.jsonl"]))
    assert {check for check, *_ in found} == {"config"}
    assert [any(part in told for _, told, _ in found) for part in ("Agnet", "gpro", "absent.jsonl")] == [True] * 3


def test_a_file_that_is_no_config_ends_it(config):
    config.write_text("modle: {}\n", encoding="utf-8")
    ((check, told, fix),) = wrong(examine(config))
    assert check == "config"
    assert "config.yaml:1" in told
    assert "config show" in fix


def test_a_template_that_drops_tools_is_told_and_fails_the_agent_that_offers_some(config, tmp_path):
    model = toy_policy(tmp_path / "model", architecture="qwen3", seed=0)
    (model / "chat_template.jinja").write_text(WITHOUT_TOOLS, encoding="utf-8")
    findings = list(examine(config, [f"model={{path: '{model}'}}", "workflow=agent.py:ToolUser"]))
    noted = [finding.told for finding in findings if finding.check == "template"]
    assert noted[1].startswith("note: this chat template drops tools: the policy will never see them")
    ((check, told, _),) = wrong(findings)
    assert check == "call"
    assert "this model's chat template drops tools: the policy would never see lookup" in told


def test_what_tool_servers_find_wrong_with_tasks_is_told(config, tmp_path):
    (tmp_path / "server.py").write_text(SERVER, encoding="utf-8")
    config.write_text(f"{CONFIG}tools: {{servers: [{{use: 'server.py:Server'}}]}}\n", encoding="utf-8")
    assert wrong(examine(config)) == [("tasks", "t: nobody can solve it", "")]


def test_a_taken_port_is_told(config):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        found = wrong(examine(config, [f"gateway.port={number}"]))
    assert [check for check, *_ in found] == ["port"]  # the rest is tried where the gateway can listen
    assert f"port {number} on 127.0.0.1 is in use" in found[0][1]
    assert "gateway.port: 0" in found[0][2]


def test_a_model_that_cannot_be_loaded_is_told(config, tmp_path):
    (tmp_path / "empty").mkdir()
    config.write_text(CONFIG.replace("use: tiny, size: 0.1M, vocab_size: 300, context_length: 256", "path: empty"))
    ((_, told, _),) = wrong(examine(config))
    assert "empty" in told


def test_a_broken_package_is_told_with_what_leaves_it_out(sample_site, launch):
    done = launch("doctor", site=sample_site)
    assert done.returncode == 1
    assert "WRONG  plugins   agentrl-broken 0.2.0 failed to load: " in done.stdout
    assert "AGENTRL_BLOCK_PLUGINS=agentrl-broken" in done.stdout


def test_machines_get_json(launch):
    done = launch("doctor", "--json")
    assert done.returncode == 0, done.stdout
    assert {(item["check"], item["ok"]) for item in json.loads(done.stdout)} == {
        ("versions", True),
        ("plugins", True),
        ("port", True),
    }


def test_an_old_python_and_a_missing_package_are_told(monkeypatch):
    monkeypatch.setattr(doctor, "_PYTHONS", ((3, 98), (3, 100)))
    assert wrong(examine())[0][2] == "use Python 3.98 to 3.99"
    monkeypatch.setattr(doctor, "_SHOWN_VERSIONS", ("torch", "no-such-package"))
    assert "not installed: no-such-package" in wrong(examine())[0][1]


def test_a_step_is_tried_at_the_largest_shape(config, tmp_path):
    findings = list(examine(config, ["trainer.max_tokens_per_microbatch=400", "sampling.max_tokens=60"], try_step=True))
    assert wrong(findings) == []
    assert findings[-1].check == "step"
    pattern = r"a pass of (\d+) tokens with records of (\d+) took [\d.]+ s with the update; at most"
    found = re.match(pattern, findings[-1].told)
    tokens, record = map(int, found.groups())
    assert 400 - record < tokens <= 400
    assert record > 60
    assert not (tmp_path / "runs").exists()


def test_a_run_that_does_not_fit_names_the_options_that_make_it_smaller(config, monkeypatch):
    monkeypatch.setattr(resources, "capacity", lambda _device: 0)
    monkeypatch.setattr(doctor, "held_bytes", lambda: 2**20)
    ((check, told, fix),) = wrong(examine(config))
    assert check == "memory"
    assert told.endswith("1 MiB free")
    assert "libraries 450 MiB" in told
    assert "trainer.max_tokens_per_microbatch (now 8192)" in fix


def test_weights_that_do_not_fit_are_told_before_the_model_is_loaded(config, tmp_path, monkeypatch):
    model = toy_policy(tmp_path / "model")
    monkeypatch.setattr(resources, "capacity", lambda _device: 0)
    monkeypatch.setattr(doctor, "held_bytes", lambda: 0)
    findings = list(examine(config, [f"model={{path: '{model}'}}"]))
    assert [(finding.check, finding.ok) for finding in findings[-2:]] == [("device", True), ("memory", False)]


def test_a_device_that_is_not_there_is_told(config):
    ((check, told, _),) = wrong(examine(config, ["trainer.device=cuda:99"]))
    assert check == "config"
    assert "trainer.device: cuda:99 is not there" in told
