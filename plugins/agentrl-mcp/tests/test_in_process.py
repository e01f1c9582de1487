"""Server objects of the SDK in this process."""

import asyncio
import json
import textwrap

import pytest

from agentrl_core.api.tools import ToolEpisode
from agentrl_core.errors import DeliveryUnknownError, ToolServerError
from agentrl_mcp.tools import MCPTools

SERVER = textwrap.dedent(
    '''
    import asyncio
    import contextlib
    from mcp.server import MCPServer
    from typing import Annotated
    from mcp.server.elicitation import ElicitationResult
    from mcp.server.mcpserver import Context, Image
    from mcp.server.mcpserver.resolve import Elicit, Resolve
    from pydantic import BaseModel

    events = []

    @contextlib.asynccontextmanager
    async def lifespan(server):
        events.append("begun")
        yield {}
        events.append("ended")

    mcp = MCPServer("demo", lifespan=lifespan)

    class City(BaseModel):
        city: str

    @mcp.tool()
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @mcp.tool()
    def image() -> Image:
        return Image(data=b"abc", format="png")

    @mcp.tool()
    def fail() -> str:
        raise ValueError("no such file")

    @mcp.tool()
    async def hang() -> str:
        await asyncio.Event().wait()

    async def asked() -> Elicit[City]:
        return Elicit("Which city?", City)

    @mcp.tool()
    async def where(answer: Annotated[ElicitationResult[City], Resolve(asked)]) -> str:
        return answer.data.city if answer.action == "accept" else answer.action

    @mcp.tool()
    def who(ctx: Context) -> str:
        return str((ctx.request_context.meta or {}).get("agentrl/episode"))

    def make():
        return mcp

    def answer(episode, message, schema):
        return {"city": episode.data["home"]}

    @contextlib.asynccontextmanager
    async def broken(server):
        raise OSError("no disk")
        yield

    no_start = MCPServer("broken", lifespan=broken)
    nothing = 3
    '''
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "own.py").write_text(SERVER)
    return tmp_path


def episode(number=1):
    return ToolEpisode(record_id=f"record-{number}", task_id="t1", data={"home": f"city {number}"})


def run(tools, scenario):
    async def drive():
        await tools.start()
        try:
            return await scenario(tools)
        finally:
            await tools.close()

    return asyncio.run(drive())


@pytest.mark.parametrize("name", ["mcp", "make"])
def test_tools_of_a_server_object_are_called_without_a_transport(folder, name):
    async def scenario(tools):
        session = await tools.open(episode())
        specs = {spec.name: spec for spec in await session.list_tools()}
        assert specs["add"].description == "Adds two numbers."
        assert specs["add"].parameters["required"] == ["a", "b"]
        sums = await asyncio.gather(*(session.call("add", {"a": n, "b": 1}, timeout_s=10) for n in range(50)))
        assert [result.text for result in sums] == [str(n + 1) for n in range(50)]
        image = await session.call("image", {}, timeout_s=10)
        bad = [await session.call(*call, timeout_s=10) for call in (("fail", {}), ("add", {"a": "x"}), ("nobody", {}))]
        await session.close()
        return sums[0].structured, image.content, [result.is_error for result in bad]

    structured, content, errors = run(MCPTools(server=f"own.py:{name}", config_dir=folder), scenario)
    assert structured == {"result": 1}
    assert content == ({"type": "image_url", "image_url": {"url": "data:image/png;base64,YWJj"}},)
    assert errors == [True, True, True]


def test_a_call_that_hangs_ends_at_its_deadline(folder):
    async def scenario(tools):
        with pytest.raises(DeliveryUnknownError, match=r"no answer to tools/call within 0\.1 s"):
            await (await tools.open(episode())).call("hang", {}, timeout_s=0.1)

    run(MCPTools(server="own.py:mcp", config_dir=folder), scenario)


@pytest.mark.parametrize("isolation", ["shared", "session"])
def test_the_episodes_id_reaches_the_tool(folder, isolation):
    async def scenario(tools):
        sessions = [await tools.open(episode(number)) for number in (1, 2)]
        return [(await session.call("who", {}, timeout_s=10)).text for session in sessions]

    expected = ["record-1", "record-2"] if isolation == "session" else ["None", "None"]
    assert run(MCPTools(server="own.py:mcp", isolation=isolation, config_dir=folder), scenario) == expected


def test_elicitations_are_answered_for_the_episode_that_asks(folder):
    async def scenario(tools):
        sessions = [await tools.open(episode(number)) for number in range(5)]
        results = await asyncio.gather(*(session.call("where", {}, timeout_s=10) for session in sessions))
        return [result.text for result in results]

    answered = MCPTools(server="own.py:mcp", elicitation="own.py:answer", config_dir=folder)
    assert run(answered, scenario) == [f"city {number}" for number in range(5)]
    assert run(MCPTools(server="own.py:mcp", config_dir=folder), scenario) == ["decline"] * 5


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_start", "the server does not start: OSError: no disk"),
        ("nothing", r"own\.py:nothing is of type int; expected a server of the MCP SDK"),
    ],
)
def test_an_object_that_cannot_be_used_is_named(folder, name, says):
    with pytest.raises(ToolServerError, match=says):
        run(MCPTools(server=f"own.py:{name}", config_dir=folder), None)


def test_the_lifespan_of_the_server_ends_with_the_run(folder):
    from agentrl_core.api.options import resolve, user_folders

    events = resolve("own.py:events", user_folders(folder)).value
    events.clear()

    async def scenario(tools):
        return json.dumps(events)

    assert run(MCPTools(server="own.py:mcp", config_dir=folder), scenario) == '["begun"]'
    assert events == ["begun", "ended"]
