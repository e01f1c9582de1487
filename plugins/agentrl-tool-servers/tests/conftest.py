"""A client of a server in this process."""

import contextlib

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

KEY = "a key of sixteen bytes and more"


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


@pytest.fixture(scope="session")
def key():
    return KEY


@contextlib.asynccontextmanager
async def client_of(url, **options):
    """Yield a client of a server over HTTP, with its key."""
    headers = {"Authorization": f"Bearer {KEY}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), **options) as client,
    ):
        yield client


@pytest.fixture(scope="session")
def connect_http():
    return client_of
