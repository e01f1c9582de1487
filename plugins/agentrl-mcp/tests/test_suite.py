"""The conformance suite of tool servers, for servers as processes, at a URL, and in this process."""

import sys
from pathlib import Path

import pytest

from agentrl_mcp.tools import MCPTools
from agentrl_testing import ToolServerSuite

RAW = Path(__file__).with_name("raw_server.py")
COUNT = (("count", {}), ("counted", {}))
FILE = (("write", {"text": "mine"}), ("read", {}))


class RawServerSuite(ToolServerSuite):
    @pytest.fixture
    def example(self):
        return "echo", {"text": "hello"}

    @pytest.fixture
    def changes(self):
        return [COUNT]

    @pytest.fixture
    def slow(self):
        return "hang", {}


class TestProcesses(RawServerSuite):
    @pytest.fixture
    def server(self):
        return MCPTools(command=[sys.executable, "-S", str(RAW)], name="raw")

    @pytest.fixture
    def changes(self):
        return [COUNT, FILE]


class TestSharedProcess(RawServerSuite):
    @pytest.fixture
    def server(self):
        return MCPTools(command=[sys.executable, "-S", str(RAW)], isolation="shared")

    @pytest.fixture
    def changes(self):
        return [COUNT, FILE]


class TestSessionsOverHttp(RawServerSuite):
    @pytest.fixture
    def server(self, http_server):
        return MCPTools(url=http_server("--era", "handshake").url, isolation="session")


SERVER = """
import asyncio
from mcp.server import MCPServer

mcp = MCPServer("demo")
count = 0

@mcp.tool()
def echo(text: str) -> str:
    return text

@mcp.tool()
def add() -> int:
    global count
    count += 1
    return count

@mcp.tool()
def counted() -> int:
    return count

@mcp.tool()
async def hang() -> str:
    await asyncio.Event().wait()
"""


class TestInProcess(RawServerSuite):
    @pytest.fixture
    def server(self, tmp_path):
        (tmp_path / "own.py").write_text(SERVER)
        return MCPTools(server="own.py:mcp", config_dir=tmp_path)

    @pytest.fixture
    def changes(self):
        return [(("add", {}), ("counted", {}))]
