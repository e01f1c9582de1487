import asyncio

import pytest
from tests.tools.conftest import ECHO, FakeServer

from agentrl_core.api.tools import ToolSpec
from agentrl_core.errors import ConfigError, ToolServerError


class Listing(FakeServer):
    """Lists its tools without an episode, too."""

    async def list_tools(self):
        return self.specs


class Down(FakeServer):
    async def start(self):
        raise ConnectionError("refused")


class Refusing(FakeServer):
    async def start(self):
        raise ToolServerError("nothing listens at http://localhost:1/mcp")


def started(toolbox):
    asyncio.run(toolbox.start())


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (Down(), "tool server 'corpus' could not be started: ConnectionError: refused; start what it needs, or"),
        (Refusing(), "tool server 'corpus': nothing listens at http://localhost:1/mcp"),
        (Listing(specs=[ToolSpec(name="")]), "tool server 'corpus' lists a tool without a name"),
        (Listing(specs=[ECHO, ECHO]), "tool server 'corpus' lists the tool 'echo' twice"),
        (
            Listing(specs=[ToolSpec(name="x", parameters={"$ref": "#/nowhere"})]),
            "tool server 'corpus' has an invalid schema of the arguments of 'x': ",
        ),
        (
            Listing(specs=[ToolSpec(name="x", parameters={"type": "array"})]),
            "has an invalid schema of the arguments of 'x': expected the type object, found 'array'",
        ),
    ],
)
def test_a_server_that_cannot_be_used_is_named_and_the_others_are_closed(make_toolbox, server, said):
    other = FakeServer()
    with pytest.raises(ToolServerError) as raised:
        started(make_toolbox(other, server, entries=[{}, {"name": "corpus"}]))
    assert said in str(raised.value)
    assert other.ended
    assert server.ended


def test_tools_of_one_name_are_found_at_the_start(make_toolbox):
    first, second = Listing(), Listing()
    with pytest.raises(ConfigError, match=r"'fake-1' and 'fake-2' both have a tool 'echo'.*`prefix`"):
        started(make_toolbox(first, second))
    assert first.ended
    assert second.ended


def test_the_failure_of_one_server_to_close_does_not_keep_others_open(make_toolbox, caplog):
    class Stuck(FakeServer):
        async def close(self):
            raise RuntimeError("still in use")

    other = FakeServer()
    asyncio.run(make_toolbox(Stuck(), other).close())
    assert other.ended
    assert "tool server 'fake-1' could not be closed" in caplog.text
