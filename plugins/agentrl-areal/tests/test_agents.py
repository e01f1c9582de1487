"""AReaL's agent classes, from the released files with their import lines changed, in both modes."""

import ast
import importlib.util
import json

import pytest

from agentrl_core.config.sampling_sections import AgentConfig, RolloutConfig
from agentrl_core.rollout.subproc.resolving import resolve_in_workers
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.types import Outcome

ALL = '''
"""The agents of the released files, each under its name; one process imports them all."""
import users_workflow_anthropic_math_agent as of_anthropic
import users_workflow_langchain_math_agent as of_langchain
import users_workflow_openai_math_agent as of_openai

AGENTS = {
    "openai": of_openai.MathAgent(),
    "openai_turns": of_openai.MultiTurnMathAgent(max_turns=3),
    "openai_tools": of_openai.MathToolAgent(),
    "langchain": of_langchain.MathAgent(),
    "langchain_tools": of_langchain.MathToolAgent(),
    "anthropic": of_anthropic.MathAgent(max_tokens=50),
}


async def run(data, **extra_kwargs):
    return await AGENTS[data["agent"]].run(data, **extra_kwargs)
'''
AGENTS = ("openai", "openai_turns", "openai_tools", "langchain", "langchain_tools", "anthropic")
SDKS = ("openai", "agents", "langchain", "langchain_openai", "anthropic")
FILES = ("openai/math_agent", "langchain/math_agent", "anthropic/math_agent")


@pytest.fixture
def agents(migrate, tmp_path, monkeypatch):
    """A file with all agents, and the released files beside it."""
    missing = [name for name in SDKS if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-users-own")
    for name in FILES:
        migrate(f"workflow/{name}.py")
    path = tmp_path / "users_agents.py"
    path.write_text(ALL)
    return path


def mind(prompt, turn):
    """A policy that uses a tool where it has one, and is wrong at first where it may try again."""
    if "twice" in prompt and turn == 0:
        return "it is 5"
    if '"add"' in prompt and turn == 0:
        return f"<tool_call>{json.dumps({'name': 'add', 'arguments': {'a': 2, 'b': 2}})}</tool_call>"
    return r"so \boxed{4}"


@pytest.mark.slow  # every process imports all the SDKs
@pytest.mark.parametrize("mode", ["inline", "subproc"])
def test_each_class_is_rewarded_for_what_it_sampled(world, agents, row, mode):
    world.mind = mind
    rows = [{**row, "agent": name} for name in AGENTS]
    rows[1]["messages"] = [{"role": "user", "content": "What is 2 + 2? Try twice."}]
    options = {"registry": world.registry, "base_dir": world.folder}
    if mode == "inline":
        resolved = resolve_workflow(f"{agents}:run", **options)
    else:
        config = RolloutConfig(agent=AgentConfig(mode="subproc", subproc_max_workers=1))
        resolved = resolve_in_workers(f"{agents}:run", rollout=config, **options)
    episodes = [world.play_rows(resolved, item)[0] for item in rows]  # one at a time: one reward process is enough
    by_call = {tuple(entry.ids) + tuple(entry.request.prompt_ids): entry for entry in world.engine.log}
    found = {}
    for name, episode in zip(AGENTS, episodes, strict=True):
        assert episode.record.outcome is Outcome.SCORED, (name, episode.record.detail)
        found[name] = (len(episode.interactions), episode.record.reward)
        for earlier, later in zip(episode.interactions, episode.interactions[1:], strict=False):
            assert later.parent == earlier.id, name
        for call in episode.interactions:
            prompt = episode.full_ids(call)[: -len(call.output_ids)]
            assert by_call[call.output_ids + prompt].logprobs == call.logprobs, name
    assert found == {
        "openai": (1, 1.0),
        "openai_turns": (2, 1.0),
        "openai_tools": (2, 1.0),
        "langchain": (1, 1.0),
        "langchain_tools": (2, 1.0),
        "anthropic": (1, 1.0),
    }
    turns = episodes[1]
    assert turns.record.rewards == {turns.interactions[0].id: 0.0, turns.interactions[1].id: 1.0}


def test_what_the_agent_of_claude_imports_is_here(released):
    """Its SDK brings a program of 360 MB, so it is not run."""
    tree = ast.parse(released.migrated("workflow/anthropic/claude_math_agent.py"))
    ours = [
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("agentrl_areal")
        for alias in node.names
    ]
    assert ours
    for module, name in ours:
        assert hasattr(importlib.import_module(module), name)
