"""The HTTP client for model servers: what comes whole is given whole, anything else is an error that says what."""

import asyncio
import contextlib
import ssl

import pytest

from agentrl_core.http1 import ExchangeError, Http1Client, server_sent_events

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@contextlib.asynccontextmanager
async def serving(*replies, **options):
    """A server that answers with these bytes in turn, None closing the connection, and a client of it."""
    left, requests, connections = list(replies), [], []

    async def talk(reader, writer):
        connections.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                requests.append((head, await reader.readexactly(length)))
                reply = left.pop(0)
                if reply is None:
                    break
                writer.write(reply)
                await writer.drain()
                if not left or b"content-length" not in reply.lower():
                    break
                if left[0] is None:
                    del left[0]
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield Http1Client(url, ssl_context=ssl.create_default_context, **options), requests, connections


async def read(client, body=b"{}"):
    async with client.request("POST", "/x", body) as reply:
        return await reply.read()


def test_a_connection_is_kept():
    async def twice():
        async with serving(OK, OK) as (client, requests, connections):
            assert [await read(client), await read(client, b"longer")] == [b"ok", b"ok"]
            assert [body for _, body in requests] == [b"{}", b"longer"]
            assert len(connections) == 1

    asyncio.run(twice())


def test_a_kept_connection_that_the_server_has_closed_is_no_failure():
    async def twice():
        async with serving(OK, None, OK, retries=0) as (client, _, connections):
            # Whether the client knows of the end yet makes no difference.
            assert [await read(client), await read(client)] == [b"ok", b"ok"]
            assert len(connections) == 2

    asyncio.run(twice())


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        OK + OK,
    ],
)
def test_every_way_to_say_how_long_a_body_is(wire):
    async def once():
        async with serving(wire) as (client, _, _):
            assert await read(client) == b"ok"

    asyncio.run(once())


def test_a_large_body_waits_for_its_reader():
    size = 8 << 20

    async def slowly():
        async with (
            serving(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + bytes(size)) as (client, _, _),
            client.request("POST", "/x", b"{}") as reply,
        ):
            pieces = [piece async for piece in reply]
            assert sum(map(len, pieces)) == size
            assert max(map(len, pieces)) < 2 << 20

    asyncio.run(slowly())


@pytest.mark.parametrize(
    ("wire", "fault"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok", "broken"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n", "broken"),
        (b"SMTP ready\r\n", "garbled"),
        (None, "broken"),
    ],
)
def test_what_does_not_come_whole_is_an_error(wire, fault):
    async def once():
        async with serving(wire, retries=0) as (client, _, _):
            with pytest.raises(ExchangeError) as raised:
                await read(client)
            assert raised.value.fault == fault

    asyncio.run(once())


def test_no_more_connections_than_allowed():
    async def many():
        async with serving(*[OK] * 12, max_connections=2) as (client, _, connections):
            assert await asyncio.gather(*[read(client) for _ in range(12)]) == [b"ok"] * 12
            assert len(connections) <= 2

    asyncio.run(many())


def test_a_port_without_a_server_is_named():
    client = Http1Client("http://127.0.0.1:1", ssl_context=ssl.create_default_context, retries=0)
    with pytest.raises(ExchangeError, match=r"127\.0\.0\.1:1: no connection") as raised:
        asyncio.run(read(client))
    assert raised.value.fault == "connect"


@pytest.mark.parametrize("url", ["host", "ftp://host", "http://user:word@host", "http://host?x=1"])
def test_a_url_is_a_place_and_no_more(url):
    with pytest.raises(ValueError, match="url"):
        Http1Client(url, ssl_context=ssl.create_default_context)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_events_are_told_apart_however_they_arrive(size):
    body = b": hello\n\ndata: one\r\n\r\nevent: x\ndata: two\ndata:three\n\ndata: unfinished"

    async def pieces():
        for at in range(0, len(body), size):
            yield body[at : at + size]

    async def events():
        return [data async for data in server_sent_events(pieces())]

    assert asyncio.run(events()) == [b"one", b"two\nthree"]
