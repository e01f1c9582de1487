"""Large requests keep neither the event loop nor other sessions waiting, and take a bounded room in memory."""

import asyncio
import contextlib
import gc
import json
import socket
import sqlite3
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import httpx2
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from agentrl_core.chat.tokenizer import TextTokenizer, TooManyTokensError
from agentrl_core.errors import RequestError
from agentrl_core.gateway.large_requests import LARGE_BYTES, LargeRequests, in_one_go
from agentrl_core.gateway.serving.body_memory import BodyRoom, RoomSize
from agentrl_core.gateway.serving.limits import Limits
from agentrl_core.gateway.serving.server import GatewayServer
from agentrl_core.gateway.serving.web import MAX_CONTAINERS, MAX_VALUES, HttpRequest, decode_body, json_response

SMALL, LARGE = "small", "a" * LARGE_BYTES


def messages(text):
    return [{"role": "user", "content": text}]


@pytest.fixture
def encoded(monkeypatch):
    """Thread ids of tokenizing, by whether the text was large."""
    seen = {True: set(), False: set()}
    encode = TextTokenizer._encode

    def noted(self, text):
        seen[len(text) >= LARGE_BYTES].add(threading.get_ident())
        return encode(self, text)

    monkeypatch.setattr(TextTokenizer, "_encode", noted)
    return seen


@pytest.fixture
def lengths(monkeypatch):
    """Lengths of the texts that are tokenized."""
    seen = []
    encode = TextTokenizer._encode
    monkeypatch.setattr(TextTokenizer, "_encode", lambda self, text: seen.append(len(text)) or encode(self, text))
    return seen


BODIES = {
    "/v1/chat/completions": lambda text: {"messages": messages(text)},
    "/v1/completions": lambda text: {"prompt": text},
    "/v1/responses": lambda text: {"input": text},
    "/v1/messages": lambda text: {"messages": messages(text), "max_tokens": 9},
    "/v1/messages/count_tokens": lambda text: {"messages": messages(text)},
}


@pytest.mark.parametrize("path", BODIES)
def test_large_texts_are_tokenized_on_threads_and_small_ones_where_they_come(session, send, encoded, path):
    for text in (SMALL, LARGE):  # with the path, because prompts are cached
        assert send(session, BODIES[path](path + text), path=path).status_code == 200
    assert threading.get_ident() not in encoded[True]
    assert encoded[True]
    assert encoded[False] == {threading.get_ident()}


def test_a_large_request_goes_on_from_the_exact_ids_as_any_other(session, send, engine, store):
    body = {"messages": messages(LARGE)}
    reply = send(session, body).json()["choices"][0]["message"]
    body["messages"] += [reply, *messages("and now?")]
    assert send(session, body).status_code == 200
    first, second = engine.log
    assert second.request.prompt_ids[: len(first.request.prompt_ids)] == first.request.prompt_ids
    assert store.interactions[1].parent == store.interactions[0].id


@pytest.mark.parametrize("path", BODIES)
def test_a_text_far_beyond_the_context_is_refused_after_its_beginning(
    session, send, engine, lengths, path, monkeypatch
):
    monkeypatch.setattr(engine, "context_length", 1000)
    reply = send(session, BODIES[path]("a b " * 2_000_000), path=path)
    assert reply.status_code == 400
    assert "context_length_exceeded" in reply.text
    assert sum(lengths) < 100_000
    assert engine.log == []


def test_how_much_of_a_text_is_tokenized_to_see_that_it_is_too_long(chat, lengths):
    with pytest.raises(TooManyTokensError) as refused:
        chat.encode("a b " * 2_000_000, most_tokens=100)
    assert 100 < refused.value.tokens < 8_000_000
    assert sum(lengths) < 10_000


def blanks_are_one_token(pattern):
    """Make a tokenizer for which a run of blanks of any length is one unknown token, or none at all."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    tokenizer.normalizer = normalizers.Replace(pattern, "")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return TextTokenizer(tokenizer)


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ("a " * 100, 100, 100),
        ("a" * 100_000, 10, 1),  # one unknown word
        ("a " * 10 + "x" * 100_000, 10, 10),
        ("x" * 100_000 + "a " * 10, 10, 10),
        ("a " * 15 + " " * 100_000, 10, 15),  # not surely too many: whoever asked counts
    ],
)
def test_a_text_is_not_refused_for_its_length_in_characters(text, most, expected):
    tokenizer = blanks_are_one_token("x")
    assert len(tokenizer.encode(text, most_tokens=most)) == expected


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * MAX_CONTAINERS + b"[]]",
        b"[" + b"{}," * MAX_CONTAINERS + b"{}]",
        b"[" * 200_000,
        b"[" + b"1," * MAX_VALUES + b"1,1]",
        b"[" + b'"",' * MAX_VALUES + b'"",""]',
        b"{" + b'"":1,' * MAX_VALUES + b'"":1,"":1}',
    ],
)
def test_bodies_of_too_many_values_are_not_made(body):
    with pytest.raises(RequestError, match="1,000,000 values") as refused:
        decode_body(body)
    assert refused.value.status == 400


@pytest.mark.parametrize(("num_bytes", "wait_s", "meet"), [(2**20, 0.2, False), (9, 60.0, True)])
def test_no_two_threads_keep_the_interpreter_in_turns(num_bytes, wait_s, meet):
    inside = threading.Barrier(2)

    def met():
        with contextlib.suppress(threading.BrokenBarrierError):
            inside.wait(wait_s)
            return True
        return False

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda _: in_one_go(num_bytes, met), range(2))) == [meet, meet]


@pytest.mark.parametrize("text", ["[{,]}" * 200_000, '\\"[,' * 200_000, "\\" * 1_000_000])
def test_what_strings_hold_are_no_values(text):
    body = json.dumps({"messages": messages(text)}).encode()
    assert decode_body(body) == {"messages": messages(text)}


@pytest.mark.parametrize("body", [b'"' + b'\\"[,' * 2_000_000, b'["' + b"\\" * 3_000_001, b"[" * 90_000 + b'"'])
def test_a_string_without_an_end_is_no_json(body):
    with pytest.raises(RequestError) as refused:
        decode_body(body)
    assert refused.value.code == "invalid_json"


class Held:
    """Work that waits for its turn to end."""

    def __init__(self, name, done):
        self.name, self.done = name, done
        self.begun, self.end = threading.Event(), threading.Event()

    def __call__(self):
        self.begun.set()
        assert self.end.wait(30)
        self.done.append(self.name)
        return self.name


@pytest.fixture
def large():
    with closing(LargeRequests(lambda _: None)) as large:
        yield large


def test_a_session_has_one_thread_and_others_go_first(large):
    done = []
    greedy, other = [Held(f"greedy {number}", done) for number in range(3)], Held("other", done)

    async def scenario():
        asked = [asyncio.ensure_future(large.run("greedy", LARGE_BYTES, work)) for work in greedy]
        await asyncio.to_thread(greedy[0].begun.wait, 30)
        asked.append(asyncio.ensure_future(large.run("other", LARGE_BYTES, other)))
        assert await asyncio.to_thread(other.begun.wait, 30)
        assert not greedy[1].begun.is_set()
        for work in (other, *greedy):
            work.end.set()
        return await asyncio.gather(*asked)

    assert asyncio.run(scenario()) == ["greedy 0", "greedy 1", "greedy 2", "other"]
    assert sorted(done) == ["greedy 0", "greedy 1", "greedy 2", "other"]


def test_work_whose_client_has_left_is_not_begun(large):
    done = []
    first, left = Held("first", done), Held("left", done)

    async def scenario():
        asked = [asyncio.ensure_future(large.run("one", LARGE_BYTES, work)) for work in (first, left)]
        await asyncio.to_thread(first.begun.wait, 30)
        asked[1].cancel()
        await asyncio.gather(asked[1], return_exceptions=True)
        first.end.set()
        assert await large.run("one", LARGE_BYTES, lambda: "next") == "next"

    asyncio.run(scenario())
    assert done == ["first"]


def test_errors_come_back_to_whoever_asked_and_closing_refuses_the_rest(large):
    running, waiting = Held("running", []), Held("waiting", [])

    async def scenario():
        with pytest.raises(ZeroDivisionError):
            await large.run("one", LARGE_BYTES, lambda: 1 / 0)
        asked = [asyncio.ensure_future(large.run("one", LARGE_BYTES, work)) for work in (running, waiting)]
        await asyncio.to_thread(running.begun.wait, 30)
        closing_it = asyncio.ensure_future(asyncio.to_thread(large.close))
        with pytest.raises(RequestError, match="closing"):
            await asked[1]
        running.end.set()
        await closing_it
        with pytest.raises(RequestError, match="closing"):
            await large.run("one", LARGE_BYTES, waiting)
        return await asked[0]

    assert asyncio.run(scenario()) == "running"


MB = 2**20


def test_room_is_bounded_in_all_and_for_a_client():
    room = BodyRoom(RoomSize(total_bytes=10 * MB, client_bytes=6 * MB, wait_s=30))

    async def scenario():
        one = await room.take(b"one", 4 * MB)
        again = asyncio.ensure_future(room.take(b"one", 3 * MB))
        other = await room.take(b"other", 4 * MB)
        third = asyncio.ensure_future(room.take(b"third", 3 * MB))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not again.done()
        assert not third.done()
        assert await room.take(b"third", MB)  # small bodies need none
        other()
        other()
        await third
        assert not again.done()
        one()
        frees = [await again, third.result()]
        for free in frees:
            free()
        await asyncio.sleep(0)
        assert not room._taken
        assert not room._waiting

    asyncio.run(scenario())


def test_room_that_comes_in_the_turn_in_which_the_wait_ends_is_not_lost():
    room = BodyRoom(RoomSize(total_bytes=4 * MB, client_bytes=4 * MB, wait_s=0.05))

    async def scenario():
        await room.take(b"one", 4 * MB)
        waiting = asyncio.ensure_future(room.take(b"other", 2 * MB))
        await asyncio.sleep(0)
        time.sleep(0.2)
        room._give_back(b"one", [4 * MB])
        free = await waiting
        free()
        await asyncio.sleep(0)
        assert not room._taken

    asyncio.run(scenario())


def test_who_waits_for_room_in_vain_is_told_to_come_again_and_who_leaves_takes_none():
    room = BodyRoom(RoomSize(total_bytes=4 * MB, client_bytes=4 * MB, wait_s=0.01))

    async def scenario():
        free = await room.take(b"one", 4 * MB)
        with pytest.raises(RequestError, match="other large bodies") as refused:
            await room.take(b"other", 2 * MB)
        assert (refused.value.status, refused.value.retry_after_s) == (503, 1.0)
        leaves = asyncio.ensure_future(room.take(b"other", 2 * MB))
        await asyncio.sleep(0)
        free()
        await asyncio.sleep(0)  # its turn has come
        leaves.cancel()
        await asyncio.gather(leaves, return_exceptions=True)
        assert not room._taken
        assert not room._waiting

    asyncio.run(scenario())


@pytest.fixture
def serve():
    """Serve one page with room for so many bytes of bodies; returns what connects."""
    with ExitStack() as stack:

        def start(handle, **room):
            server = stack.enter_context(
                closing(
                    GatewayServer(
                        handle, lambda _: None, host="127.0.0.1", port=0, limits=Limits(), room=RoomSize(**room)
                    )
                )
            )
            server.start()
            host, port = server.url.removeprefix("http://").split(":")
            return lambda: stack.enter_context(closing(socket.create_connection((host, int(port)), timeout=20)))

        yield start


def head(*headers):
    return "\r\n".join(["POST / HTTP/1.1", "host: gateway", *headers, "", ""]).encode()


@pytest.mark.parametrize("length", ["content-length: 3145728", "transfer-encoding: chunked"])
def test_a_body_without_room_is_not_read_and_room_is_free_once_a_body_is_taken(serve, length):
    begun, release = threading.Event(), threading.Event()

    async def handle(request):
        assert len(request.body) == 3 * MB
        if request.headers["x-take"] == "yes":
            request.take_body()
        begun.set()
        await asyncio.to_thread(release.wait, 20)
        return json_response({})

    body, room = b"x" * 3 * MB, 3 * MB
    if length.startswith("transfer"):
        body, room = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body), 16 * MB
    connect = serve(handle, total_bytes=room, client_bytes=room, wait_s=0.05)
    keeps, late = connect(), connect()
    keeps.sendall(head(length, "x-take: no") + body)
    assert begun.wait(20)
    late.sendall(head(length, "x-take: yes"))
    assert late.recv(65536).startswith(b"HTTP/1.1 503 ")
    release.set()
    assert keeps.recv(65536).startswith(b"HTTP/1.1 200 ")
    begun.clear()
    release.clear()
    takes, next_one = connect(), connect()
    takes.sendall(head(length, "x-take: yes") + body)
    assert begun.wait(20)
    begun.clear()
    next_one.sendall(head(length, "x-take: yes") + body)
    assert begun.wait(20)
    release.set()
    for connection in (takes, next_one):
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_store_that_another_process_has_locked_keeps_nobody_else_waiting(rest, database):
    """A call waits for its own write; other requests do not wait for it."""

    async def scenario():
        key = (await rest.start())["api_key"]
        async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:

            async def call():
                headers = {"authorization": f"Bearer {key}"}
                url = f"{rest.gateway.url}/v1/chat/completions"
                return (await client.post(url, json={"messages": messages("hello")}, headers=headers)).status_code

            with closing(sqlite3.connect(database.path, check_same_thread=False)) as other:
                other.execute("BEGIN IMMEDIATE")
                called = asyncio.ensure_future(call())
                answers = [(await client.get(f"{rest.gateway.url}/health")).status_code for _ in range(20)]
                assert not called.done()
                other.rollback()
                return answers, await called

    assert asyncio.run(scenario()) == ([200] * 20, 200)


class Body(dict):
    """A decoded body that can be seen to be gone."""


@pytest.fixture
def no_collection():
    """Let nothing be freed but what nobody refers to any more."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_nothing_of_a_large_request_that_was_refused_is_kept(session, send, engine, monkeypatch, no_collection):
    seen = []

    def noted(body):
        value = Body(decode_body(body))
        seen.append(weakref.ref(value))
        return value

    monkeypatch.setattr("agentrl_core.gateway.answering.decode_body", noted)
    monkeypatch.setattr(engine, "context_length", 100)
    assert send(session, {"messages": messages(LARGE)}).status_code == 400
    assert [one() for one in seen] == [None]


def test_a_request_gives_its_body_up(session, gateway, engine):
    """A generation does not keep the text of its request alive."""
    taken = []

    async def scenario(request):
        await engine.pause()
        running = asyncio.ensure_future(gateway.router.handle(request))
        while not engine.begun[0].is_set():
            await asyncio.sleep(0)
        assert request.body == b""
        await engine.resume()
        assert (await running).status == 200

    path = session.base_url.removeprefix(gateway.url) + "/v1/chat/completions"
    body = json.dumps({"messages": messages("hello")}).encode()
    asyncio.run(
        scenario(HttpRequest(method="POST", path=path, headers={}, body=body, on_body_taken=lambda: taken.append(1)))
    )
    assert taken


@pytest.mark.parametrize(
    ("route", "field"),
    [
        ("/v1/chat/completions", {"model": "m" * 300_000}),
        ("/v1/chat/completions", {"chat_template_kwargs": {"a": "x" * 300_000}}),
        ("/v1/responses", {"model": "m" * 300_000}),
    ],
)
def test_options_that_would_fill_the_store_are_refused(route, field, send, session, store):
    reply = send(session, {**BODIES[route]("hello"), **field}, path=route)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "options_too_large")
    assert not store.interactions
