"""The Claude Agent SDK as it is; its program is stood in for, but where a test is slow."""

import json
import os
from pathlib import Path

import pytest

from agentrl_anthropic.claude_agent import ClaudeAgentWorkflow
from agentrl_core.errors import ConfigError
from agentrl_core.types import Outcome
from agentrl_testing.adapters import AdapterSuite

sdk = pytest.importorskip(
    "claude_agent_sdk", reason="needs `pip install claude-agent-sdk`, which brings a program of 360 MB"
)


PROGRAM = Path(__file__).with_name("stand_in_cli.py")


@pytest.fixture
def options():
    return sdk.ClaudeAgentOptions(cli_path=PROGRAM, env={"OWN": "yes"})


class TestOptions(AdapterSuite):
    @pytest.fixture
    def agent_factory(self, options):
        return lambda: options


def test_the_programs_environment_is_the_episodes_and_ours_stays(world, options):
    world.says("hi")
    before = dict(os.environ)
    found = []

    def scorer(request):
        found.append(json.loads(request.answer))
        return 1.0

    episodes = world.run(options, *[{"query": "environment"}] * 2, scorer=scorer)
    assert [episode.record.outcome for episode in episodes] == [Outcome.SCORED] * 2, episodes[0].record.detail
    assert dict(os.environ) == before
    folders = {told["CLAUDE_CONFIG_DIR"] for told in found}
    assert len(folders) == 2
    assert not any(Path(folder).exists() for folder in folders)
    for told in found:
        assert (told["ANTHROPIC_API_KEY"], told["CLAUDE_CODE_MAX_RETRIES"], told["OWN"]) == ("", "0", "yes")
        assert told["PWD"] == told["CLAUDE_CONFIG_DIR"]


def test_a_working_directory_of_the_agents_own_is_kept(world, tmp_path):
    world.says("hi")
    found = []

    def scorer(request):
        found.append(json.loads(request.answer)["PWD"])
        return 1.0

    named = ClaudeAgentWorkflow(options={"cli_path": str(PROGRAM), "cwd": str(tmp_path)}, input_key="question")
    world.run(named, {"question": "environment"}, scorer=scorer)
    assert found == [str(tmp_path)]


def test_an_agent_out_of_turns_is_scored_as_it_stands(world, options):
    world.says("hi")
    [ended, failed] = world.run(options, {"query": "max_turns"}, {"query": "broken"})
    assert (ended.record.outcome, len(ended.interactions)) == (Outcome.SCORED, 1), ended.record.detail
    assert (failed.record.outcome, failed.record.reason) == (Outcome.FAILED, "ClaudeSDKError")
    assert "error_during_execution: broken" in failed.record.detail


def test_a_program_that_is_not_there_fails_the_episode(world):
    missing = ClaudeAgentWorkflow(options={"cli_path": "/nowhere/claude"})
    [episode] = world.run(missing, {"query": "hello"})
    assert (episode.record.outcome, episode.record.reason) == (Outcome.FAILED, "CLINotFoundError")


AGENT_FILE = f"""
from claude_agent_sdk import ClaudeAgentOptions

def build():
    return ClaudeAgentOptions(cli_path={str(PROGRAM)!r}, system_prompt="Be brief.")
"""


def test_a_config_names_the_options_or_their_factory(world, tmp_path):
    (tmp_path / "claude_file.py").write_text(AGENT_FILE)
    world.says("hi")
    [episode] = world.run(f"{tmp_path}/claude_file.py:build", {"ask": "hello"}, options={"input_key": "ask"})
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    name = "agentrl_anthropic.claude_agent:ClaudeAgentWorkflow"
    [episode] = world.run(name, {"query": "hello"}, options={"options": {"cli_path": str(PROGRAM)}})
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail


def test_wrong_options_are_refused_before_anything_runs(options):
    with pytest.raises(ConfigError, match=r"workflow.options.max_turn: unknown field of ClaudeAgentOptions"):
        ClaudeAgentWorkflow(options={"max_turn": 3})
    with pytest.raises(ConfigError, match="set only one of them"):
        ClaudeAgentWorkflow(options, options={})


@pytest.mark.slow
@pytest.mark.skipif(
    not (Path(sdk.__file__).parent / "_bundled" / "claude").exists(), reason="the SDK was installed without its program"
)
def test_the_program_itself_uses_tools_in_the_records_own_session(world, call, tmp_path, monkeypatch):
    from agentrl_core import workflow_context

    monkeypatch.setenv("HOME", str(tmp_path))
    used = []

    @sdk.tool("add", "Add two numbers.", {"a": int, "b": int})
    async def add(arguments):
        used.append(workflow_context.get().record_id)
        return {"content": [{"type": "text", "text": str(arguments["a"] + arguments["b"])}]}

    agent = sdk.ClaudeAgentOptions(
        system_prompt="Add.",
        tools=[],
        allowed_tools=["mcp__calculator__add"],
        mcp_servers={"calculator": sdk.create_sdk_mcp_server("calculator", tools=[add])},
        max_turns=4,
    )
    world.says(call("mcp__calculator__add", a=1, b=2), "<answer>3</answer>")
    episodes = world.run(agent, {"query": "1 + 2?"}, {"query": "2 + 1?"})
    for episode in episodes:
        assert episode.record.outcome is Outcome.SCORED, episode.record.detail
        first, second = episode.interactions
        assert (second.parent, second.messages[0]["content"]) == (first.id, "3")
    assert set(used) == {episode.record.id for episode in episodes}
    world.engine.refuse, world.engine.calls = True, 0
    [episode] = world.run(agent, {"query": "1 + 2?"})
    assert (episode.record.outcome, world.engine.calls) == (Outcome.FAILED, 1)
