"""Serving tools of the run over MCP, with the SDK's client and with ours, over stdio and HTTP, in both eras."""

import asyncio
import contextlib
import sys
from pathlib import Path

import pytest
from mcp import Client, MCPError, StdioServerParameters

from agentrl_core.api.options import resolve
from agentrl_core.api.tools import ToolEpisode, ToolResult
from agentrl_core.errors import ConfigError
from agentrl_mcp.in_process import is_server
from agentrl_mcp.results import result_of
from agentrl_mcp.serving import serve, server_of, wire_result
from agentrl_mcp.tools import MCPTools

EPISODE = ToolEpisode(record_id="record-1", task_id="t1", data={})
PROGRAM = Path(__file__).with_name("served_tools.py")
Tools = resolve(f"{PROGRAM.name}:Tools", [PROGRAM.parent]).value


@contextlib.asynccontextmanager
async def serving(tools):
    """Serve over HTTP; yields the address."""
    address = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(tools, port=0, started=address.set_result))
    try:
        yield await address
    finally:
        task.cancel()
        await asyncio.wait({task})


async def use_sdk(target, mode):
    async with Client(target, mode=mode) as client:
        listed = (await client.list_tools()).tools
        results = [await client.call_tool("echo", {"text": "hi"}), await client.call_tool("lose", {})]
        return [tool.name for tool in listed], listed[0].annotations.read_only_hint, results


def check(names, read_only, results):
    assert names == ["echo", "lose"]
    assert read_only is True
    assert [result.is_error for result in results] == [False, True]
    assert [result.content[0].text for result in results] == ["hi", "the sandbox is gone"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_sdks_client_uses_what_is_served_over_http(mode):
    async def scenario():
        async with serving(Tools()) as address:
            return await use_sdk(address, mode)

    check(*asyncio.run(scenario()))


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25", "2025-06-18"])
def test_our_client_uses_what_is_served_over_http(version):
    async def scenario():
        async with serving(Tools()) as address:
            tools = MCPTools(url=address, protocol=version, isolation="session")
            await tools.start()
            session = await tools.open(EPISODE)
            specs = await session.list_tools()
            results = [await session.call(name, {"text": "hi"}, timeout_s=10) for name in ("echo", "lose", "nobody")]
            await session.close()
            await tools.close()
            return specs, results

    specs, results = asyncio.run(scenario())
    assert [spec.name for spec in specs] == ["echo", "lose"]
    assert specs[0].read_only
    assert [(result.text, result.is_error) for result in results] == [
        ("hi", False),
        ("the sandbox is gone", True),
        ("no tool nobody", True),
    ]


def test_an_address_in_use_is_a_clear_error():
    async def scenario():
        async with serving(Tools()) as address:
            with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use"):
                await serve(Tools(), port=int(address.rpartition(":")[2].partition("/")[0]))

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_what_is_served_over_stdio_serves_both_clients(mode):
    async def scenario():
        params = StdioServerParameters(command=sys.executable, args=[str(PROGRAM)])
        check(*await use_sdk(params, mode))
        tools = MCPTools(command=[sys.executable, str(PROGRAM)], protocol="auto" if mode == "auto" else "2025-11-25")
        await tools.start()
        session = await tools.open(EPISODE)
        result = await session.call("echo", {"text": "hi"}, timeout_s=10)
        await tools.close()
        return result.text

    assert asyncio.run(scenario()) == "hi"


BLOCKS = (
    {"type": "text", "text": "a"},
    {"type": "image", "data": "AAAA", "mimeType": "image/png"},
    {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
    {"type": "resource", "resource": {"uri": "file:///page", "text": "page", "mimeType": "text/html"}},
    {"type": "resource", "resource": {"uri": "file:///image", "blob": "AAAA", "mimeType": "image/png"}},
    {"type": "resource", "resource": {"uri": "file:///data", "blob": "AAAA", "mimeType": "application/pdf"}},
    {"type": "resource_link", "name": "report", "uri": "file:///report"},
)


@pytest.mark.parametrize("block", BLOCKS, ids=[f"{block['type']}-{n}" for n, block in enumerate(BLOCKS)])
def test_what_a_server_sent_is_served_as_it_was(block):
    wire = wire_result(result_of({"content": [block], "structuredContent": {"a": 1}}, tool="t"))
    shown = wire.model_dump(by_alias=True, mode="json", exclude_none=True)
    assert (shown["content"], shown["structuredContent"]) == ([block], {"a": 1})


def test_an_unknown_tool_is_an_error_of_the_protocol():
    async def scenario():
        async with serving(Tools()) as address, Client(address) as client:
            with pytest.raises(MCPError, match="no tool nobody") as caught:
                await client.call_tool("nobody", {})
            return caught.value.error.code

    assert asyncio.run(scenario()) == -32602


def test_an_image_at_an_address_is_a_link():
    result = ToolResult(content=({"type": "image_url", "image_url": {"url": "https://a/b.png"}},))
    wire = wire_result(result).model_dump(by_alias=True, mode="json", exclude_none=True)
    assert wire["content"][0]["uri"] == "https://a/b.png"


def test_the_served_object_is_a_server():
    assert is_server(server_of(Tools()))
    assert not is_server(Tools())
