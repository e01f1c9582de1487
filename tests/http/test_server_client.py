"""The HTTP client for model servers: what comes whole is given whole, anything else is an error that says what."""

import asyncio
import contextlib
import gc
import gzip
import ssl
import sys
import threading
import time

import pytest

from agentrl_core.http.backoff import Backoff
from agentrl_core.http.server_client import ExchangeError, ServerClient, server_sent_events

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


WAYS = [False]
"""Whether the clients of the running test use lean connections."""


@pytest.fixture(autouse=True, params=[False, True], ids=["aiohttp", "direct"])
def way(request):
    WAYS[0] = request.param


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
        yield (
            ServerClient(url, ssl_context=ssl.create_default_context, direct=WAYS[0], **options),
            requests,
            connections,
        )


async def read(client, body=b"{}"):
    with await client.request("POST", "/x", body) as reply:
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


def test_a_request_that_may_have_arrived_is_not_sent_again_without_resends():
    async def twice():
        # The server reads the second request, and ends the kept connection without an answer.
        async with serving(OK, b"", OK, resends=False) as (client, requests, _):
            assert await read(client) == b"ok"
            with pytest.raises(ExchangeError) as caught:
                await read(client, b"second")
            assert caught.value.fault == "broken"
            assert [body for _, body in requests] == [b"{}", b"second"]

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


def test_a_reply_that_is_announced_first_comes_whole():
    async def announced():
        async with serving(b"HTTP/1.1 100 Continue\r\n\r\n" + OK, OK) as (client, _, connections):
            assert [await read(client), await read(client)] == [b"ok", b"ok"]
            assert len(connections) == 1

    asyncio.run(announced())


def test_bytes_that_nobody_asked_for_end_a_kept_connection():
    async def surplus():
        async with serving(OK + b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad", OK) as (client, _, connections):
            assert [await read(client), await read(client)] == [b"ok", b"ok"]
            assert len(connections) == 2

    asyncio.run(surplus())


def test_a_large_body_waits_for_its_reader():
    size = 8 << 20

    async def slowly():
        whole = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + bytes(size)
        async with serving(whole) as (client, _, _):
            with await client.request("POST", "/x", b"{}") as reply:
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


@pytest.mark.parametrize("part", [b"HTTP/1.1 200 OK\r\ncontent-", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok"])
def test_a_request_whose_reply_has_begun_is_not_sent_anew(part):
    async def once():
        async with serving(part, None) as (client, requests, _):
            with pytest.raises(ExchangeError) as raised:
                await read(client)
            assert (raised.value.fault, len(requests)) == ("broken", 1)

    asyncio.run(once())


def test_a_request_that_got_nothing_is_sent_anew(monkeypatch):
    monkeypatch.setattr("agentrl_core.http.server_client._BACKOFF", Backoff(first_s=0.001))

    async def once():
        async with serving(b"", b"", OK, retries=2) as (client, requests, _):
            assert await read(client) == b"ok"
            assert len(requests) == 3

    asyncio.run(once())


@contextlib.asynccontextmanager
async def listening(talk, **options):
    async def talk_and_close(reader, writer):
        try:
            await talk(reader, writer)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(talk_and_close, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield ServerClient(url, ssl_context=ssl.create_default_context, direct=WAYS[0], retries=0, **options)


ENDLESS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n"


@contextlib.asynccontextmanager
async def endless(**options):
    """A server that begins a reply and waits, and a queue of the connections that were ended at it."""
    ended = asyncio.Queue()

    async def talk(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ENDLESS)
        with contextlib.suppress(ConnectionError):
            while await reader.read(100):
                pass
        ended.put_nowait(1)

    async with listening(talk, **options) as client:
        yield client, ended


def test_leaving_a_reply_early_ends_its_connection():
    async def leave():
        async with endless() as (client, ended):
            with await client.request("POST", "/x", b"{}") as reply:
                assert await anext(aiter(reply)) == b"ok"
            await asyncio.wait_for(ended.get(), 5)

    asyncio.run(leave())


def test_a_limit_of_connections_counts_replies_that_are_being_read():
    async def three():
        async with endless(max_connections=2) as (client, _):
            first, second = [await client.request("POST", "/x", b"{}") for _ in range(2)]
            third = asyncio.create_task(client.request("POST", "/x", b"{}"))
            assert not (await asyncio.wait([third], timeout=0.1))[0]
            first.close()
            first.close()  # the second time frees no second place
            fourth = asyncio.create_task(client.request("POST", "/x", b"{}"))
            assert (await asyncio.wait([third, fourth], timeout=0.3))[0] == {third}
            fourth.cancel()
            second.close()
            third.result().close()

    asyncio.run(three())


def test_closing_ends_those_who_wait():
    async def wait():
        async with endless() as (client, ended):

            async def reads():
                with await client.request("POST", "/x", b"{}") as reply:
                    return await reply.read()

            reader = asyncio.create_task(reads())
            with await client.request("POST", "/x", b"{}"):
                client.close()
                with pytest.raises(ExchangeError) as raised:
                    await asyncio.wait_for(reader, 5)
            assert raised.value.fault == "broken"
            await asyncio.wait_for(ended.get(), 5)

    asyncio.run(wait())


@pytest.mark.parametrize("size", [2, 32 << 20])
def test_silence_is_told_also_of_a_server_that_does_not_read(size):
    async def talk(_reader, writer):
        writer.transport.pause_reading()
        await done.wait()

    async def wait():
        async with listening(talk, silence_s=0.2, connect_timeout_s=3.0) as client:
            with pytest.raises(ExchangeError, match=r"nothing arrived for 0\.2 s") as raised:
                await read(client, bytes(size))
            done.set()
            assert raised.value.fault == "silent"

    done = asyncio.Event()
    asyncio.run(wait())


def test_each_thread_has_connections_of_its_own():
    started = threading.Barrier(4)

    def many(client):
        async def ask():
            await asyncio.to_thread(started.wait, 5)
            return [await read(client) for _ in range(3)]

        return asyncio.run(ask())

    async def talk(reader, writer):
        connections.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"{}"):
                writer.write(OK)

    async def serve():
        async with listening(talk) as client:
            replies = await asyncio.gather(*[asyncio.to_thread(many, client) for _ in range(4)])
            assert replies == [[b"ok"] * 3] * 4
            assert len(connections) == 4
            assert await read(client) == b"ok"  # threads whose loops have ended leave nothing behind
            assert len(client._pools) == 1
            client.close()
            assert await read(client) == b"ok"

    connections = []
    asyncio.run(serve())


def test_a_loop_that_is_closed_without_ceremony_leaves_no_warning():
    loop = asyncio.new_event_loop()
    client = ServerClient("http://127.0.0.1:1", ssl_context=ssl.create_default_context, direct=WAYS[0], retries=0)
    with pytest.raises(ExchangeError):
        loop.run_until_complete(read(client))
    loop.close()
    client.close()
    gc.collect()


def test_a_server_gets_and_does_no_more_than_is_asked(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    packed = gzip.compress(b"ok")
    first = b"HTTP/1.1 307 Elsewhere\r\nlocation: /y\r\nset-cookie: a=b\r\ncontent-length: 0\r\n\r\n"
    second = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed) + packed

    async def twice():
        async with serving(first, second) as (client, requests, _):
            with await client.request("POST", "/x", b"{}") as reply:
                assert (reply.status, reply.headers["location"]) == (307, "/y")
                assert await reply.read() == b""
            assert await read(client) == packed
            heads = [head.lower() for head, _ in requests]
            assert all(b"accept-encoding: identity" in head and b"cookie" not in head for head in heads)

    asyncio.run(twice())


def test_a_port_without_a_server_is_named():
    client = ServerClient("http://127.0.0.1:1", ssl_context=ssl.create_default_context, direct=WAYS[0], retries=0)
    with pytest.raises(ExchangeError, match=r"127\.0\.0\.1:1: no connection") as raised:
        asyncio.run(read(client))
    assert raised.value.fault == "connect"


@pytest.mark.parametrize("url", ["host", "ftp://host", "http://user:word@host", "http://host?x=1"])
def test_a_url_is_a_place_and_no_more(url):
    with pytest.raises(ValueError, match="url"):
        ServerClient(url, ssl_context=ssl.create_default_context)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_events_are_told_apart_however_they_arrive(size):
    body = b": hello\n\ndata: one\r\n\r\nevent: x\ndata: two\ndata:three\n\ndata: unfinished"

    async def pieces():
        for at in range(0, len(body), size):
            yield body[at : at + size]

    fields = []

    async def events():
        return [data async for data in server_sent_events(pieces(), on_field=lambda *field: fields.append(field))]

    assert asyncio.run(events()) == [b"one", b"two\nthree"]
    assert fields == [("event", "x")]


# What is too large.


@pytest.mark.parametrize(
    "head",
    [b"transfer-encoding: chunked", b"content-length: 9999999999", b"content-encoding: gzip\r\nconnection: close"],
)
def test_a_reply_without_an_end_is_left_at_the_limit(head):
    async def talk(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")
        piece = bytes(1 << 16)
        with contextlib.suppress(ConnectionError):
            while True:
                sent.append(len(piece))
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if b"chunked" in head else piece)
                await writer.drain()

    async def once():
        async with listening(talk) as client:
            with await client.request("POST", "/x", b"{}") as reply:
                with pytest.raises(ExchangeError, match="more than 1000000 bytes") as raised:
                    await reply.read(1_000_000)
                assert raised.value.fault == "too large"
            with await client.request("POST", "/x", b"{}") as reply:
                assert len(await reply.read_beginning(1000)) == 1000

    sent = []
    asyncio.run(once())
    assert sum(sent) < 40_000_000  # what the buffers of both sides hold


def test_a_reply_of_just_the_limit_is_whole():
    async def once(limit):
        async with serving(OK) as (client, _, _):
            with await client.request("POST", "/x", b"{}") as reply:
                return await reply.read(limit)

    assert asyncio.run(once(2)) == b"ok"
    with pytest.raises(ExchangeError):
        asyncio.run(once(1))


async def pieces_of(*parts):
    for part in parts:
        yield part


@pytest.mark.parametrize(
    "parts",
    [
        [b"data: " + b"x" * 90] * 20,
        [b"data: x\n"] * 200,
        [b"data:\n"] * 400,
        [b"x" * 500] * 4,
    ],
)
def test_an_event_without_an_end_is_left_at_the_limit(parts):
    async def read_all():
        return [data async for data in server_sent_events(pieces_of(*parts), most_event_bytes=1000)]

    with pytest.raises(ExchangeError, match="an event of its stream has more than 1000 bytes") as raised:
        asyncio.run(read_all())
    assert raised.value.fault == "too large"


def test_a_stream_of_small_events_is_left_at_its_own_limit():
    async def read_all(count):
        parts = pieces_of(*[b"data: x\n\n"] * count)
        return [data async for data in server_sent_events(parts, most_bytes=1000)]

    assert len(asyncio.run(read_all(111))) == 111
    with pytest.raises(ExchangeError, match="its stream has more than 1000 bytes"):
        asyncio.run(read_all(112))


def test_a_long_line_costs_in_proportion_to_its_length():
    def cpu_s(count):
        async def read_all():
            return [data async for data in server_sent_events(pieces_of(*[b"data: ", *[b"x" * 64] * count, b"\n\n"]))]

        times = []
        for _ in range(3):
            begun = time.process_time()
            ((data,)) = asyncio.run(read_all())
            times.append(time.process_time() - begun)
            assert len(data) == 64 * count
        return min(times)

    assert cpu_s(64_000) < 24 * cpu_s(8_000)  # in proportion it is 8 times, by copying what came before 64 times


def test_a_stream_that_is_left_early_leaves_nothing_to_the_collector():
    """A generator that is only dropped would be closed by the event loop, later or never."""

    async def leave():
        unclosed = []
        sys.set_asyncgen_hooks(finalizer=unclosed.append)
        async with endless() as (client, ended):
            with await client.request("POST", "/x", b"{}") as reply:
                async with contextlib.aclosing(server_sent_events(reply)) as events:
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(anext(events), 0.05)
            with await client.request("POST", "/x", b"{}") as reply:
                async for _ in reply:
                    break
            gc.collect()
            await ended.get()
        return unclosed

    assert asyncio.run(leave()) == []
