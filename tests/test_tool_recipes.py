"""Recipes with tool servers: a scripted policy plays them with the real servers, and a tiny one learns them."""

import contextlib
import importlib
import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl_core.config import load
from agentrl_core.config.component import Component
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.run.components import resolve
from agentrl_core.run.in_process import context_policy
from agentrl_core.run.tools import toolbox_of
from agentrl_core.types import ToolOutcome

pytest.importorskip("agentrl_mcp")
pytest.importorskip("agentrl_tool_servers")

from agentrl_core.data.tasks import load_tasks
from agentrl_testing.workflows import Rehearsal

COOKBOOK = Path(__file__).parent.parent / "cookbook"
RESPONSE = re.compile(r"<tool_response>(.*?)</tool_response>", re.DOTALL)
CALCULATOR = "{use: mcp, name: calculator, command: [python, -m, agentrl_tool_servers.calculator], isolation: shared}"


@contextlib.contextmanager
def serving(script):
    """Run a server of a recipe on a free port, until the end of the block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, str(COOKBOOK / script), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert f":{port}/" in process.stdout.readline()
            yield port
        finally:
            process.terminate()


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def play(tmp_path, recipe, overrides, say, *, count):
    """Play held-out tasks of a recipe with its own servers, context policy and scorer, but a scripted policy."""
    components = resolve(load(COOKBOOK / recipe / "config.yaml", overrides))
    config = components.config
    rehearsal = Rehearsal(tmp_path / recipe, say, context=context_policy(components))
    try:
        tasks = load_tasks(COOKBOOK / recipe / "heldout.jsonl")[:count]
        name = tasks[0].scorer or config.data.default_scorer
        entry = config.scorers.get(name) or Component(name)
        scorer = components.registry.build("scorers", entry, config_dir=COOKBOOK / recipe)
        workflow = resolve_workflow(config.workflow, registry=components.registry, base_dir=COOKBOOK / recipe)
        played = rehearsal.play(workflow, tasks, scorer=scorer, tools=toolbox_of(components))
        return [rehearsal._loop.run(rehearsal._store.episode(episode.record.id)) for episode in played]
    finally:
        rehearsal.close()


def buyer(prompt):
    """A policy that answers the questions about the shop."""
    question = re.findall(r"What do .*\?", prompt)[-1]
    town = question.split(" in ")[1].rstrip("?")
    several = re.match(r"What do (\d) of the (\w+) cost", question)
    things = [several[2]] if several else re.findall(r"a (\w+)", question)
    told = RESPONSE.findall(prompt)
    if not told:
        return "".join(call("price", item=thing, town=town) for thing in things)
    if len(told) == len(things):
        return call("calculate", expression=f"{several[1]}*{told[0]}" if several else "+".join(told))
    return f"<answer>{told[-1]}</answer>"


def shop_at(port):
    return f'tools.servers=[{{use: mcp, name: shop, url: "http://127.0.0.1:{port}/mcp"}}, {CALCULATOR}]'


def judge_at(port):
    return f'scorers.judge.models=[{{base_url: "http://127.0.0.1:{port}/v1", model: judge-1}}]'


def test_a_question_takes_the_tools_of_two_servers(tmp_path):
    with serving("mcp_tools/shop.py") as port:
        episodes = play(tmp_path, "mcp_tools", (shop_at(port),), buyer, count=12)
    assert [(episode.record.reward, episode.record.detail) for episode in episodes] == [(1.0, "")] * 12
    for episode in episodes:
        assert {item.server for item in episode.tool_calls} == {"shop", "calculator"}
        assert {item.outcome for item in episode.tool_calls} == {ToolOutcome.OK}
        assert len(episode.interactions) == 3
        assert "completed" in episode.record.marks


def rows_of(recipe, name):
    return [json.loads(line) for line in (COOKBOOK / recipe / name).read_text(encoding="utf-8").splitlines()]


def researcher(prompt):
    """A policy that answers the questions about ships and captains; it sees the last two turns."""
    (task,) = [row for row in rows_of("deep_research", "heldout.jsonl") if f"\n{row['query']}<" in prompt]
    titles = {row["id"]: row["title"] for row in rows_of("deep_research", "documents.jsonl")}
    told = RESPONSE.findall(prompt)
    assert len(told) <= 2
    if not told:
        return call("search", query=titles[task["path"][0]])
    if found := re.match(r"\w+ \[(\w+)\]", told[-1]):
        return call("browse", id=found[1])
    seen = [titles[document] for document in task["path"]].index(told[-1].splitlines()[0])
    left = task["path"][seen + 1 :]
    return call("search", query=titles[left[0]]) if left else f"<answer>{task['answer']}</answer>"


def guesser(_):
    return "<answer>nobody</answer>"


def test_research_searches_browses_forgets_and_is_judged(tmp_path):
    with serving("deep_research/judge.py") as port:
        episodes = play(tmp_path, "deep_research", (judge_at(port),), researcher, count=8)
        lost = play(tmp_path / "wrong", "deep_research", (judge_at(port),), guesser, count=1)
    assert [(episode.record.reward, episode.record.detail) for episode in episodes] == [(1.0, "")] * 8
    assert [episode.record.reward for episode in lost] == [0.0]
    assert max(len(episode.interactions) for episode in episodes) == 5
    for episode in episodes:
        names = [item.tool for item in episode.tool_calls]
        assert names == ["search", "browse"] * (len(names) // 2)
        assert episode.record.score_details["judge"]["verdict"]["model"] == "judge-1"


def test_the_demonstrations_offer_the_tools_as_the_servers_do(tmp_path):
    seen = []

    def say(prompt):
        seen.append(prompt)
        return "<answer>1</answer>"

    with serving("mcp_tools/shop.py") as port:
        play(tmp_path, "mcp_tools", (shop_at(port),), say, count=1)
    listed = json.loads((COOKBOOK / "mcp_tools/tools.json").read_text(encoding="utf-8"))
    assert [json.loads(line) for line in seen[0].splitlines() if line.startswith('{"')] == listed


@pytest.mark.parametrize("recipe", ["mcp_tools", "deep_research"])
def test_no_held_out_question_is_in_training_or_in_demonstrations(recipe):
    shown = {row["query"] for row in rows_of(recipe, "train.jsonl")}
    demonstrated = [message for row in rows_of(recipe, "demos.jsonl") for message in row["messages"]]
    shown |= {message["content"] for message in demonstrated if message["role"] == "user"}
    assert not shown & {row["query"] for row in rows_of(recipe, "heldout.jsonl")}


@pytest.mark.parametrize("recipe", ["mcp_tools", "deep_research"])
def test_the_committed_data_is_what_its_script_writes(recipe, monkeypatch):
    folder = COOKBOOK / recipe
    monkeypatch.syspath_prepend(str(folder))
    for module in ("make_data", "shop"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    script = importlib.import_module("make_data")
    written = {}
    monkeypatch.setattr(script, "write", lambda name, lines: written.update({name: list(lines)}))
    script.main()
    for name, lines in written.items():
        assert rows_of(recipe, name) == lines, name
    assert {path.name for path in folder.glob("*.jsonl")} == set(written)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "script", "at"),
    [("mcp_tools", "shop.py", shop_at), ("deep_research", "judge.py", judge_at)],
)
def test_a_step_of_the_recipe_trains_exact_tokens(warm, tmp_path, recipe, script, at):
    """One step of 32 episodes, by the command line; a policy that knows so little gets any different rewards."""
    (tmp_path / "lengths.py").write_text("def score(request):\n    return len(str(request.messages[-1])) % 7\n")
    short = ("warm_start.steps=20", "rollout.tasks_per_step=4", "trainer.steps=1", "eval.every=0", "eval.tasks=1")
    scored = f"data.default_scorer={tmp_path}/lengths.py:score"
    with serving(f"{recipe}/{script}") as port:
        options = ("--name", "smoke", f"output_dir={tmp_path}", *short, scored, at(port))
        with warm.program("run", COOKBOOK / recipe / "config.yaml", *options) as program:
            output, _ = program.communicate()
    assert program.returncode == 0, output
    events = [json.loads(line) for line in (tmp_path / "smoke/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert set(events[-1]["outcomes"]) == {"scored"}
    assert events[-1]["outcomes"]["scored"] >= 32
    assert events[-1]["exact_tokens"] == events[-1]["trained_tokens"] > 0
