"""What the README shows, run."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from tests.gateway import conftest as parts

from agentrl_core import config
from agentrl_core.config.sampling_sections import AgentConfig, GatewayConfig, RolloutConfig
from agentrl_core.config.sft import SftConfig
from agentrl_core.rollout.online import OnlineAgents
from agentrl_core.rollout.rewards import early_request
from agentrl_core.rollout.runner import Runner
from agentrl_core.run.checks import check_config
from agentrl_core.types import Outcome, Record, Task
from agentrl_testing.advantages import check_advantage
from agentrl_testing.plugins import isolated_plugins

chat, model_dir, engine, database, online, store, make_gateway, gateway, make_record, open_session, session = (
    getattr(parts, name)
    for name in (
        "chat",
        "model_dir",
        "engine",
        "database",
        "online",
        "store",
        "make_gateway",
        "gateway",
        "make_record",
        "open_session",
        "session",
    )
)

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
AGENTS = (ROOT / "cookbook/agents.md").read_text(encoding="utf-8")
GATEWAY = (ROOT / "cookbook/gateway.md").read_text(encoding="utf-8")
PLUGINS = (ROOT / "plugins/README.md").read_text(encoding="utf-8")
GPU = (ROOT / "cookbook/gpu.md").read_text(encoding="utf-8")
DEMONSTRATIONS = (ROOT / "cookbook/demonstrations.md").read_text(encoding="utf-8")
MODELS = (ROOT / "cookbook/models.md").read_text(encoding="utf-8")
GROUPS = (ROOT / "cookbook/groups.md").read_text(encoding="utf-8")
ADVANTAGES = (ROOT / "cookbook/advantages.md").read_text(encoding="utf-8")
(OWN_ADVANTAGE,) = re.findall(r"```python\n(.*?)```", ADVANTAGES, re.DOTALL)


def block(language: str, containing: str, page: str = README) -> str:
    found = [text for text in re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL) if containing in text]
    assert len(found) == 1, f"the page has {len(found)} {language} blocks with {containing!r}"
    return found[0]


def test_the_config_of_the_first_screen_is_valid(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(block("yaml", "my_agent.py:MathAgent"), encoding="utf-8")
    run = config.load(path, ["rollout.group_size=16"]).run
    assert (run.workflow.use, run.loss.use, run.rollout.group_size) == ("my_agent.py:MathAgent", "grpo", 16)


def test_the_commands_of_the_first_screens_exist(tmp_path, launch):
    (tmp_path / "my_agent.py").write_text(block("python", "class MathAgent"), encoding="utf-8")
    (tmp_path / "tasks.jsonl").write_text('{"id": "t1", "query": "What is 6 times 7?", "answer": "42"}\n')
    init, run = re.findall(r"^agentrl (.*?) +#", block("bash", "agentrl init demo"), re.MULTILINE)
    assert launch(*init.split()).returncode == 0
    checked = launch("config", "check", run.removeprefix("run "))
    assert (checked.stdout.splitlines()[-1], checked.returncode) == ("ok", 0), checked.stderr
    (own,) = re.findall(r"`agentrl (init --agent [^`]+)`", README)
    assert launch(*own.split()).returncode == 0
    checked = launch("config", "check", "config.yaml", "model={use: tiny}")
    assert (checked.stdout.splitlines()[-1], checked.returncode) == ("ok", 0), checked.stderr
    (listed,) = re.findall(r"^agentrl (trace list .*?) +#", README, re.MULTILINE)
    assert "no run 'first-try'" in launch(*listed.split()).stderr


def test_the_config_of_a_fine_tuning_is_valid(tmp_path):
    path = tmp_path / "sft.yaml"
    path.write_text(block("yaml", "chats.jsonl"), encoding="utf-8")
    run = config.load_as(SftConfig, path, ["data.train=best.jsonl"]).run
    assert (run.data.train, run.trainer.epochs, run.loss.use) == ("best.jsonl", 2, "cross_entropy")


def test_the_config_of_agents_in_processes_is_valid(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(block("yaml", "my_agent.py:MathAgent") + block("yaml", "mode: subproc", AGENTS), encoding="utf-8")
    agent = config.load(path, []).run.rollout.agent
    assert (agent.mode, agent.python, agent.subproc_max_memory_mb) == ("subproc", "envs/camel/bin/python", 2000)


def test_the_demonstration_of_its_page_is_one(tmp_path):
    from agentrl_core.data.demonstrations import load_demonstrations

    lines = [" ".join(block("json", "tool_calls", DEMONSTRATIONS).split())]
    (tmp_path / "demos.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert len(load_demonstrations(tmp_path / "demos.jsonl")) == 1


def test_the_agent_of_the_first_screen_runs():
    import httpx2

    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.url.path.endswith("/chat/completions")
        message = {"role": "assistant", "content": " 42 "}
        return httpx2.Response(200, json={"id": "1", "choices": [{"index": 0, "message": message}]})

    scope: dict = {}
    exec(block("python", "class MathAgent"), scope)  # the README's own text

    async def episode() -> float:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
            data = {"messages": [{"role": "user", "content": "6 x 7?"}], "answer": "42"}
            return await scope["MathAgent"]().run(data, base_url="http://x", api_key="k", http_client=client)

    assert asyncio.run(episode()) == 1.0


def test_the_six_line_scorer_package_installs_and_scores(tmp_path):
    package, site = tmp_path / "package", tmp_path / "site"
    package.mkdir()
    build = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
    wheel = '[tool.hatch.build.targets.wheel]\ninclude = ["gsm8k_scorer.py"]\n'
    (package / "pyproject.toml").write_text(build + block("toml", "agentrl-gsm8k", PLUGINS) + wheel, encoding="utf-8")
    (package / "gsm8k_scorer.py").write_text(block("python", "def score(request", PLUGINS), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([*pip, str(package)], check=True)
    program = f"""
import json
import sys
sys.path.insert(0, {str(site)!r})
from agentrl_core import ScoreRequest
from agentrl_core.plugins.manager import load_registry
from agentrl_core.types import Record, Task

registry = load_registry()
score = registry.load("scorers", "gsm8k")
task = Task(id="t1", data={{"messages": []}}, answer="42", scorer="gsm8k")
record = Record(id="r", run_id="x", task_id="t1", group_id="g", sample_index=0)

def ask(answer):
    return score(ScoreRequest(answer=answer, reference="42", task=task, messages=(), record=record))

print(json.dumps([registry.describe("scorers", "gsm8k"), ask("It is $42."), ask("41")]))
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout) == ["agentrl-gsm8k==0.1.0 gsm8k_scorer:score", 1.0, 0.0]


@pytest.mark.parametrize(
    ("reply", "score"), [("It is $42.", 1.0), ("42", 1.0), ("so <answer>42</answer>, not 7", 1.0), ("41", 0.0)]
)
def test_the_six_line_scorer_judges_plain_replies(reply, score):
    scope = {}
    exec(block("python", "def score(request", PLUGINS), scope)
    task = Task(id="t1", data={"messages": []}, answer="42", scorer="gsm8k")
    record = Record(id="r", run_id="x", task_id="t1", group_id="g", sample_index=0)
    assert scope["score"](early_request(task, record, reply, ())) == score


def test_the_clients_of_the_table_are_those_of_the_matrix():
    for package in ("anthropic", "langchain_openai", "agents", "pydantic_ai", "smolagents"):
        pytest.importorskip(package)
    from tests.matrix.clients import CLIENTS

    cells = re.findall(r"^\| (?:OpenAI|Anthropic|models).*\| ([^|]+) \|$", GATEWAY, re.MULTILINE)
    assert {name for cell in cells for name in cell.split(", ")} == {client.name.split()[0] for client in CLIENTS}


def test_the_upstream_of_the_example_is_one():
    given = config.parse({"data": "tasks.jsonl", **yaml.safe_load(block("yaml", "upstreams:"))})
    assert given.gateway.upstreams["judge"].model == "gpt-5-mini"


def test_ids_of_replies_key_rewards_in_the_anthropic_example(gateway, session, engine, store):
    pytest.importorskip("anthropic")
    scope: dict = {}
    exec(block("python", "class TwiceAgent", AGENTS), scope)  # the README's own text
    engine.replies = ["4", "six"]
    questions = [{"text": "2 + 2?", "answer": "4"}, {"text": "3 + 3?", "answer": "6"}]
    given = {"base_url": session.base_url, "api_key": session.api_key, "http_client": gateway.http_client}
    rewards = asyncio.run(scope["TwiceAgent"]().run({"questions": questions}, **given))
    assert rewards == dict(zip([item.id for item in store.interactions], (1.0, 0.0), strict=True))


def test_the_agent_from_elsewhere_plays_an_episode_of_the_run(online, database, monkeypatch):
    rest = online()
    monkeypatch.setenv("GATEWAY", rest.gateway.url)
    monkeypatch.setenv("AGENTRL_ADMIN_KEY", rest.key)
    task = Task(id="t", data={"id": "t", "messages": [{"role": "user", "content": "Hello"}]})
    rollout = RolloutConfig(agent=AgentConfig(mode="online"))
    source = OnlineAgents(rest.gateway, rollout, GatewayConfig())
    runner = Runner(source=source, gateway=rest.gateway, store=database, scorer_for=None, config=rollout, run_id="run")

    async def scenario():
        await database.add_tasks("run", [task])
        (group,) = await database.add_evaluation("run", "train", [task.id], version=0, claimable=False)
        episode = asyncio.create_task(runner.run_episode(task, group_id=group, sample_index=0, seed_key=(0,)))
        while not rest.gateway.leases.waiting:
            await asyncio.sleep(0)
        scope: dict = {}
        await asyncio.to_thread(exec, block("python", "import httpx2", AGENTS), scope)  # the README's own text
        scope["gateway"].close()
        return scope["session"], await episode

    opened, episode = asyncio.run(scenario())
    assert opened["task"] == {"id": "t", "data": task.data}
    assert (episode.record.id, episode.record.outcome) == (opened["session_id"], Outcome.SCORED)
    assert (episode.record.reward, len(episode.interactions)) == (1.0, 1)


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", MODELS, re.DOTALL))
def test_each_section_of_models_md_is_a_valid_config(text, tmp_path):
    (tmp_path / "tasks.jsonl").write_text('{"id": "t", "query": "q"}\n', encoding="utf-8")
    text = text.replace("cuda:0", "cpu").replace("{path: model,", "{use: tiny,")  # what this machine has
    model = "" if text.startswith("model:") else "model: {use: tiny}\n"
    (tmp_path / "config.yaml").write_text(
        f"{model}data: tasks.jsonl\nrollout: {{agent: {{mode: online}}}}\n{text}", encoding="utf-8"
    )
    assert check_config(config.load(tmp_path / "config.yaml"))[0] == []


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", GPU, re.DOTALL))
def test_each_config_of_gpu_md_is_valid(text, tmp_path):
    (tmp_path / "tasks.jsonl").write_text('{"id": "t", "query": "q"}\n', encoding="utf-8")
    (tmp_path / "agent.py").write_text("def run(data):\n    return 1.0\n", encoding="utf-8")
    text = re.sub(r"\{path: [^,]+,", "{use: tiny,", text.replace("cuda:0", "cpu"))  # what this machine has
    (tmp_path / "config.yaml").write_text(f"data: tasks.jsonl\nworkflow: agent.py:run\n{text}", encoding="utf-8")
    assert check_config(config.load(tmp_path / "config.yaml"))[0] == []


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", GROUPS, re.DOTALL))
def test_each_section_of_groups_md_is_a_valid_config(text, tmp_path):
    filters, orders = re.findall(r"```python\n(.*?)```", GROUPS, re.DOTALL)
    (tmp_path / "my_filters.py").write_text(filters, encoding="utf-8")
    (tmp_path / "my_orders.py").write_text(orders, encoding="utf-8")
    (tmp_path / "tasks.jsonl").write_text('{"id": "t", "query": "q"}\n', encoding="utf-8")
    (tmp_path / "agent.py").write_text("def run(data):\n    return 1.0\n", encoding="utf-8")
    (tmp_path / "config.yaml").write_text(
        "model: {use: tiny}\ndata: tasks.jsonl\nworkflow: agent.py:run\n" + text, encoding="utf-8"
    )
    loaded = config.load(tmp_path / "config.yaml")
    problems, notes = check_config(loaded)
    assert (problems, [note for note in notes if "export_style" in note]) == ([], [])
    if loaded.run.filters[-1].use.startswith("my_filters"):
        scope: dict = {}
        exec(filters, scope)  # the text's own
        records = [SimpleNamespace(record=SimpleNamespace(reward=reward)) for reward in (1.0, 0.7)]
        group = SimpleNamespace(episodes=records)
        assert scope["not_too_easy"](group)
        assert not scope["not_too_easy"](group, limit=0.8)


def test_the_estimator_of_advantages_md_keeps_its_contract():
    scope: dict = {}
    exec(OWN_ADVANTAGE, scope)  # the page's own
    check_advantage(scope["Median"]())
    assert scope["Median"](scale=0.5).advantages([0.0, 1.0, 9.0]) == [-0.5, 0.0, 4.0]


@pytest.mark.parametrize("text", re.findall(r"```yaml\n(.*?)```", ADVANTAGES, re.DOTALL))
def test_each_section_of_advantages_md_is_a_valid_config(text, tmp_path):
    (tmp_path / "my_advantages.py").write_text(OWN_ADVANTAGE, encoding="utf-8")
    (tmp_path / "tasks.jsonl").write_text('{"id": "t", "query": "q"}\n', encoding="utf-8")
    (tmp_path / "agent.py").write_text("def run(data):\n    return 1.0\n", encoding="utf-8")
    (tmp_path / "config.yaml").write_text(
        "model: {use: tiny}\ndata: tasks.jsonl\nworkflow: agent.py:run\n" + text, encoding="utf-8"
    )
    assert check_config(config.load(tmp_path / "config.yaml"))[0] == []


@pytest.mark.parametrize("filters", ["[zero_variance]", "[agentrl-core/zero_variance]"])
@pytest.mark.parametrize(
    ("advantage", "told"),
    [("{use: reinforce_pp, baseline: false}", True), ("{use: norm, mean_level: batch}", True), ("reinforce_pp", False)],
)
def test_a_config_that_drops_what_a_step_would_compare_is_told(advantage, told, filters, tmp_path):
    (tmp_path / "tasks.jsonl").write_text('{"id": "t", "query": "q"}\n', encoding="utf-8")
    (tmp_path / "config.yaml").write_text(
        f"model: {{use: tiny}}\ndata: tasks.jsonl\nrollout: {{agent: {{mode: online}}}}\nadvantage: {advantage}\n"
        f"filters: {filters}\n",
        encoding="utf-8",
    )
    problems, notes = check_config(config.load(tmp_path / "config.yaml"))
    found = [note for note in notes if "filters" in note and "drops groups in which every record got 0" in note]
    assert (problems, len(found)) == ([], told)


@pytest.mark.parametrize(
    ("kind", "column"), [("advantages", "advantage"), ("shapings", "shaping"), ("filters", "filters")]
)
def test_the_tables_of_advantages_md_name_all_that_is_built_in(kind, column):
    (table,) = re.findall(rf"\| `{column}` \|.*?\n(.*?)\n\n", ADVANTAGES, re.DOTALL)
    with isolated_plugins() as registry:
        built_in = {entry.name for entry in registry.entries(kind)}
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == built_in


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)]+)\)", README))
def test_every_file_that_the_readme_links_exists(link):
    assert (ROOT / link).exists()


def test_every_file_that_the_architecture_page_names_exists():
    page = (ROOT / "cookbook" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", page)) - {"src/agentrl_core/", "plugins/", "cookbook/"}
    assert len(named) > 40
    assert [name for name in named if not (ROOT / "src" / "agentrl_core" / name).exists()] == []
