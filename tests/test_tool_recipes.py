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
from agentrl_core.config.schema import Component
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.run.components import resolve
from agentrl_core.run.in_process import context_policy
from agentrl_core.run.tools import toolbox_of
from agentrl_core.types import Outcome, ToolOutcome

pytest.importorskip("agentrl_mcp")
pytest.importorskip("agentrl_tool_servers")

from agentrl_core.data.tasks import load_tasks
from agentrl_testing.workflows import Rehearsal

COOKBOOK = Path(__file__).parent.parent / "cookbook"
RESPONSE = re.compile(r"<tool_response>(.*?)</tool_response>", re.DOTALL)
CALCULATOR = "{use: mcp, name: calculator, command: [python, -m, agentrl_tool_servers.calculator], isolation: shared}"


@contextlib.contextmanager
def serving(script, *, ready=None):
    """Run a server of a recipe on a free port, until the end of the block; `ready` is in the line that it begins with."""
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
        return tasks, rehearsal.play(workflow, tasks, scorer=scorer, tools=toolbox_of(components))
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


def test_a_question_takes_the_tools_of_two_servers(tmp_path):
    with serving("mcp_tools/shop.py") as port:
        tasks, episodes = play(tmp_path, "mcp_tools", (shop_at(port),), buyer, count=12)
    assert [episode.record.detail for episode in episodes if episode.record.outcome is not Outcome.SCORED] == []
    assert [episode.record.reward for episode in episodes] == [1.0] * len(tasks)
    for episode in episodes:
        assert {item.server for item in episode.tool_calls} == {"shop", "calculator"}
        assert {item.outcome for item in episode.tool_calls} == {ToolOutcome.OK}
        assert len(episode.interactions) == 3
        assert "completed" in episode.record.marks


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
    def rows(name):
        return [json.loads(line) for line in (COOKBOOK / recipe / name).read_text(encoding="utf-8").splitlines()]

    shown = {row["query"] for row in rows("train.jsonl")}
    shown |= {
        message["content"] for row in rows("demos.jsonl") for message in row["messages"] if message["role"] == "user"
    }
    assert not shown & {row["query"] for row in rows("heldout.jsonl")}


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
        assert [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()] == lines, name
    assert {path.name for path in folder.glob("*.jsonl")} == set(written)
