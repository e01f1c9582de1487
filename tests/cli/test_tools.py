"""`agentrl tools` lists and calls the tools of a config as an agent would."""

import json

import pytest

from agentrl_core.cli import main

TOOLS = '''
from agentrl_core.api.tools import ToolResult
from agentrl_core.errors import ConfigError

def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b

def fail():
    raise ValueError("no such page")

class Closed:
    async def call(self, request, call_next):
        return ToolResult.of_text("closed", is_error=True)

class Down:
    isolation = "shared"
    async def start(self):
        raise ConnectionError("refused")
    async def open(self, episode): ...
    async def close(self): ...

class Missing(Down):
    def check_start(self, *, connect):
        raise ConfigError("command: there is no such program")

class Away(Down):
    def check_start(self, *, connect):
        if connect:
            raise ConfigError("url: nobody is there")
'''


@pytest.fixture
def agentrl(tmp_path, monkeypatch, capsys):
    """Call `agentrl tools` in a folder with a config: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cli_tools.py").write_text(TOOLS)
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "query": "2+2?"}\n')
    (tmp_path / "config.yaml").write_text(
        "model: {use: tiny}\ndata: tasks.jsonl\nworkflow: agent.py:Agent\n"
        "tools: {servers: [{use: functions, functions: [cli_tools.py:add, cli_tools.py:fail], prefix: my_}]}\n"
    )

    def run(*arguments):
        code = main(["tools", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_list_prints_each_tool_with_its_server(agentrl):
    code, out, _ = agentrl("list", "config.yaml")
    assert code == 0
    assert out.splitlines()[1].split() == ["my_add", "functions-1", "shared", "Add", "two", "numbers."]
    facts = json.loads(agentrl("list", "config.yaml", "--json", "--task", "a")[1])
    assert [(item["name"], item["tool"]) for item in facts] == [("my_add", "add"), ("my_fail", "fail")]
    assert facts[0]["parameters"]["required"] == ["a"]


def test_list_prints_what_the_tools_field_of_a_demonstration_has(agentrl):
    offered = json.loads(agentrl("list", "config.yaml", "--openai")[1])
    assert [tool["type"] for tool in offered] == ["function", "function"]
    assert offered[0]["function"]["name"] == "my_add"
    assert offered[0]["function"]["description"] == "Add two numbers."
    assert offered[0]["function"]["parameters"]["properties"]["a"]["type"] == "integer"


def test_call_prints_the_result_that_a_model_is_shown(agentrl):
    assert agentrl("call", "config.yaml", "my_add", '{"a": 3}') == (0, "4\n", "")
    code, out, _ = agentrl("call", "config.yaml", "my_add", '{"a": 3}', "--json")
    assert (code, json.loads(out)["outcome"]) == (0, "ok")


def test_options_may_follow_the_name_of_a_tool(agentrl):
    code, out, err = agentrl("call", "config.yaml", "my_fail", "tools.middleware=[{use: 'cli_tools.py:Closed'}]")
    assert (code, out, err) == (1, "closed\n", "blocked\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["my_add", "{}"], 'invalid_arguments: invalid arguments for my_add: "a" is a required property'),
        (["my_ad"], "unknown_tool: there is no tool 'my_ad' (did you mean my_add?); the tools are: my_add, my_fail"),
        (["my_fail"], "tool_error: Error: ValueError: no such page"),
    ],
)
def test_a_call_without_a_result_says_why_and_fails(agentrl, arguments, said):
    code, _, err = agentrl("call", "config.yaml", *arguments)
    assert (code, err.strip()) == (1, said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "config.yaml", "tools.servers=[]"], "tools: lists no servers"),
        (["list", "config.yaml", "--task", "b"], "there is no task 'b' in tasks.jsonl"),
        (["list", "config.yaml", "tools.servers=[{use: function}]"], "did you mean functions?"),
        (
            ["list", "config.yaml", "tools.servers=[{use: 'cli_tools.py:Down', name: corpus}]"],
            "tool server 'corpus' could not be started: ConnectionError: refused",
        ),
    ],
)
def test_what_cannot_work_is_told_in_one_line(agentrl, arguments, said):
    code, out, err = agentrl(*arguments)
    assert code != 0
    assert said in err
    assert "Traceback" not in err + out


def test_two_servers_of_one_name_are_a_wrong_config(agentrl, capsys):
    servers = "tools.servers=[{use: functions, functions: ['cli_tools.py:add'], name: a}, " * 2
    override = servers.replace("tools.servers=[", "", 1).removesuffix(", ")
    override = f"tools.servers=[{override.replace('tools.servers=[', '')}]"
    _, _, err = agentrl("list", "config.yaml", override)
    assert "the name 'a' is also that of tools.servers.0" in err


def test_serve_names_the_package_to_install(agentrl, monkeypatch):
    monkeypatch.setenv("AGENTRL_LOAD_PLUGINS", "")
    code, _, err = agentrl("serve", "config.yaml")
    assert code == 2
    assert "no installed package serves tools" in err
    assert "agentrl-mcp" in err


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["tools.servers=[]", "tools.middleware=[block]"],
            "there are no tools without tools.servers",
        ),
        (["rollout.agent.mode=online", "workflow=null"], "only for agents that the run starts itself"),
        (["tools.servers=[{use: functions, functions: ['cli_tools.py:ad']}]"], "has no 'ad' (did you mean add?)"),
        (["tools.servers=[{use: functions, limit: 3}]"], "unknown option of functions"),
    ],
)
def test_config_check_finds_tools_that_cannot_work(agentrl, capsys, overrides, said):
    assert main(["config", "check", "config.yaml", *overrides]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("server", "said"), [("Missing", "command: there is no such program"), ("Away", "url: nobody is there")]
)
def test_a_run_whose_server_cannot_start_is_refused_before_anything_is_made(agentrl, capsys, tmp_path, server, said):
    (tmp_path / "agent.py").write_text("class Agent:\n    async def run(self, data): return 1.0\n")
    assert main(["run", "config.yaml", f"tools.servers=[{{use: 'cli_tools.py:{server}'}}]"]) == 2
    assert f"tools.servers.0: {said}" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", [["config", "check", "config.yaml"], ["tools", "list", "config.yaml"]])
def test_what_is_missing_on_this_machine_is_found_without_starting_a_server(agentrl, capsys, tmp_path, command):
    (tmp_path / "agent.py").write_text("class Agent:\n    async def run(self, data): return 1.0\n")
    assert main([*command, "tools.servers=[{use: 'cli_tools.py:Missing'}]"]) == 2
    assert "tools.servers.0: command: there is no such program" in capsys.readouterr().err


def test_config_check_notes_a_server_that_is_down(agentrl, capsys, tmp_path):
    (tmp_path / "agent.py").write_text("class Agent:\n    async def run(self, data): return 1.0\n")
    main(["config", "check", "config.yaml", "tools.servers=[{use: 'cli_tools.py:Down', name: corpus}]"])
    captured = capsys.readouterr()
    assert "tool server 'corpus' could not be started: ConnectionError: refused" in captured.out, captured.err
