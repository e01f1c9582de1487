"""Which protocol a connection agrees on with a server that is slow, or refuses what it speaks."""

import asyncio

import pytest

from agentrl_core.errors import DeliveryUnknownError, ToolServerError
from agentrl_mcp.connection import HANDSHAKE, STATELESS, Connection
from agentrl_mcp.elicitation import Elicitation
from agentrl_mcp.rpc import RpcError


class SlowLink:
    """Does not answer the first question in time; then it is a server of the era without a handshake, or before it."""

    def __init__(self, *, stateless):
        self.stateless, self.asked, self.version = stateless, [], ""

    async def request(self, method, params, **_):
        self.asked.append(method)
        if len(self.asked) == 1:
            raise DeliveryUnknownError("no answer in time")
        if method == "initialize" and self.stateless:
            raise RpcError(-32600, "the initialize handshake is not accepted")
        return {"supportedVersions": [STATELESS], "protocolVersion": HANDSHAKE[0], "capabilities": {}}

    async def notify(self, method, params=None):
        self.asked.append(method)


@pytest.mark.parametrize(
    ("stateless", "version", "asked"),
    [
        (True, STATELESS, ["server/discover", "initialize", "server/discover"]),
        (False, HANDSHAKE[0], ["server/discover", "initialize", "notifications/initialized"]),
    ],
)
def test_a_server_that_was_still_starting_is_asked_again(stateless, version, asked):
    link = SlowLink(stateless=stateless)
    connection = Connection(link=link, name="slow", elicitation=Elicitation())
    assert asyncio.run(connection.begin(timeout_s=5)).version == version
    assert (link.asked, link.version) == (asked, version)


class RefusingLink:
    """Refuses the version without a handshake a number of times, and says which versions it supports."""

    def __init__(self, refusals, supported):
        self.refusals, self.supported, self.asked, self.version = refusals, supported, [], ""

    async def request(self, method, params, **_):
        self.asked.append(method)
        if method == "server/discover" and self.asked.count(method) <= self.refusals:
            raise RpcError(-32022, "Unsupported protocol version", {"supported": self.supported})
        return {"supportedVersions": [STATELESS], "protocolVersion": HANDSHAKE[0], "capabilities": {}}

    async def notify(self, method, params=None):
        pass


def began(refusals, supported):
    link = RefusingLink(refusals, supported)
    connection = Connection(link=link, name="fussy", elicitation=Elicitation())
    return asyncio.run(connection.begin(timeout_s=5)).version, link.asked


def test_a_server_that_refuses_a_version_that_it_speaks_is_asked_again_once():
    assert began(1, [STATELESS]) == (STATELESS, ["server/discover"] * 2)
    assert began(2, [STATELESS, HANDSHAKE[0]]) == (HANDSHAKE[0], ["server/discover"] * 2 + ["initialize"])
    with pytest.raises(ToolServerError, match=r"speaks the versions \['2026-07-28'\]"):
        began(2, [STATELESS])
