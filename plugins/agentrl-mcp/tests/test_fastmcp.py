"""FastMCP's servers with our client, and FastMCP's client with what we serve; FastMCP has an interpreter of its own."""

import asyncio
import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from agentrl_core.api.options import resolve
from agentrl_core.api.tools import ToolEpisode
from agentrl_mcp.serving import serve
from agentrl_mcp.tools import MCPTools

pytestmark = pytest.mark.slow

VARIABLE = "AGENTRL_MCP_PYTHON"
HERE = Path(__file__).parent
SERVER = HERE / "fastmcp_server.py"
START_S = 90.0


@pytest.fixture(scope="module")
def python():
    found = os.environ.get(VARIABLE)
    if not found:
        pytest.skip(f"{VARIABLE} names no interpreter with what framework.txt lists; `nox -s tests` makes one")
    return found


@pytest.fixture(scope="module")
def address(python):
    """Address of a FastMCP server over HTTP, which serves both eras."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([python, SERVER, "http", str(port)], stderr=subprocess.DEVNULL)
    yield f"http://127.0.0.1:{port}/mcp"
    process.kill()
    process.wait()


def used(tools):
    """Use the tools in two episodes; return what they gave."""

    async def use():
        await tools.start()
        try:
            sessions = [
                await tools.open(ToolEpisode(record_id=f"{id(tools)}-{number}", task_id="t", data={}))
                for number in range(2)
            ]
            names = [spec.name for spec in await sessions[0].list_tools()]
            counts = [
                (await sessions[number].call("count", {}, timeout_s=30)).structured["result"] for number in (0, 0, 1)
            ]
            failed = await sessions[0].call("fail", {}, timeout_s=30)
            added = await sessions[1].call("add", {"a": 1, "b": 2}, timeout_s=30)
            for session in sessions:
                await session.close()
            return names, counts, failed.is_error and "no such file" in failed.text, added.text
        finally:
            await tools.close()

    return asyncio.run(use())


EXPECTED = (["add", "count", "fail"], [1, 2, 1], True, "3")


@pytest.mark.parametrize("version", ["auto", "2025-11-25"])
def test_a_server_of_fastmcp_over_http(address, version):
    tools = MCPTools(url=address, isolation="session", protocol=version, start_timeout_s=START_S)
    assert used(tools) == EXPECTED


def test_a_server_of_fastmcp_over_stdio(python):
    assert used(MCPTools(command=[python, str(SERVER), "stdio"], start_timeout_s=START_S)) == EXPECTED


CLIENT = """
import asyncio, json, sys
from fastmcp import Client

async def main():
    async with Client(sys.argv[1]) as client:
        names = [tool.name for tool in await client.list_tools()]
        result = await client.call_tool("echo", {"text": "hi"})
        lost = await client.call_tool("lose", {}, raise_on_error=False)
        print(json.dumps([names, result.content[0].text, lost.is_error]))

asyncio.run(main())
"""


def test_the_client_of_fastmcp_uses_what_we_serve(python):
    tools = resolve("served_tools.py:Tools", [HERE]).value()

    async def scenario():
        address = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve(tools, port=0, started=address.set_result))
        client = await asyncio.create_subprocess_exec(python, "-c", CLIENT, await address, stdout=subprocess.PIPE)
        told, _ = await asyncio.wait_for(client.communicate(), 120)
        serving.cancel()
        await asyncio.wait({serving})
        return json.loads(told)

    assert asyncio.run(scenario()) == [["echo", "lose"], "hi", True]
