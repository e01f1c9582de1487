"""`agentrl tools call` with a server whose tool raises: the SDK hides the reason from the model, not from the user."""

import sys

import pytest

from agentrl_core.cli import main

SERVER = '''
from mcp.server import MCPServer

mcp = MCPServer("stock")

@mcp.tool()
def count(item: str) -> int:
    """Count an item."""
    if item == "bolts":
        return 3
    raise RuntimeError("database is down")

mcp.run()
'''


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stock.py").write_text(SERVER)
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "query": "How many bolts?"}\n')
    server = f"{{use: mcp, command: ['{sys.executable}', stock.py]}}"
    (tmp_path / "config.yaml").write_text(
        f"model: {{use: tiny}}\ndata: tasks.jsonl\nworkflow: agent.py:Agent\ntools: {{servers: [{server}]}}\n"
    )

    def run(item):
        code = main(["tools", "call", "config.yaml", "count", f'{{"item": "{item}"}}'])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_tool_that_raises_is_shown_with_what_its_server_printed(call):
    code, out, err = call("nuts")
    assert (code, out) == (1, "Error executing tool count\n")
    assert "tool_error: Error executing tool count" in err
    assert "RuntimeError: database is down" in err
    assert call("bolts") == (0, "3\n", "")
