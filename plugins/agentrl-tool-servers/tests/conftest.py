"""A client of a server in this process."""

import contextlib

import pytest
from mcp import Client


def text_of(result):
    return "\n".join(part.text for part in result.content)


@contextlib.asynccontextmanager
async def tools_of(server):
    """Yield a function that calls a tool and returns (text, is_error)."""
    async with Client(server) as client:

        async def call(name, /, *, episode="", **arguments):
            meta = {"agentrl/episode": episode} if episode else None
            result = await client.call_tool(name, arguments, meta=meta)
            return text_of(result), bool(result.is_error)

        call.client = client
        yield call


@pytest.fixture(scope="session")
def connect():
    return tools_of
