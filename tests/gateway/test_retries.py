"""A client that asks again for what it missed gets just that; every logical call is in the store once."""

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import anthropic._base_client
import httpx2
import openai._base_client
import pytest
from anthropic import AsyncAnthropic
from hypothesis import given
from hypothesis import strategies as st
from openai import APITimeoutError, AsyncOpenAI

from agentrl_core.gateway.retries import Attempts, RetryKey
from agentrl_core.gateway.serving.transport import ssl_context
from agentrl_core.types import FinishReason

USER = [{"role": "user", "content": "hello"}]
BODY = {"model": "default", "messages": USER}
FIRST = {"x-stainless-retry-count": "0"}
AGAIN = {"x-stainless-retry-count": "1"}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    for module in openai._base_client, anthropic._base_client:
        monkeypatch.setattr(module.BaseClient, "_calculate_retry_timeout", lambda *_, **__: 0)


async def read_message(reader):
    """Read one HTTP message, whole."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    length = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length:")), None)
    if length is None:
        return head + await reader.readuntil(b"0\r\n\r\n")
    return head + await reader.readexactly(length)


@asynccontextmanager
async def proxy(url, fates):
    """Pass requests on, one per connection; `fates` cut the first connections once the request has been sent.

    A fate is awaited and says then whether the gateway's side is cut too.
    """
    address = urlsplit(url)
    kept = []
    failures = []

    async def serve(reader, writer):
        try:
            request = await read_message(reader)
            upstream_reader, upstream = await asyncio.open_connection(address.hostname, address.port)
            kept.append(upstream)
            upstream.write(request)
            if fates:
                if await fates.pop(0)(upstream_reader):
                    upstream.transport.abort()
            else:
                writer.write(await read_message(upstream_reader))
                await writer.drain()
        except (OSError, EOFError) as error:
            failures.append(error)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{address.path}"
    finally:
        for upstream in kept:
            upstream.transport.abort()
        server.close()
        await server.wait_closed()
        assert failures == []


async def lose_the_reply(upstream):
    await read_message(upstream)
    return False


def leave_it_running(engine):
    async def fate(_):
        await asyncio.to_thread(engine.begun[0].wait, 10)
        return False

    return fate


def cut_both_sides(engine):
    async def fate(_):
        await asyncio.to_thread(engine.begun[0].wait, 10)
        return True

    return fate


KEY = {"extra_headers": {"idempotency-key": "k1"}}
"""Options of a call whose client names it."""


def ask_openai(session, fates, **options):
    async def scenario():
        async with (
            proxy(session.base_url, fates) as url,
            AsyncOpenAI(base_url=f"{url}/v1", api_key=session.api_key, max_retries=2) as client,
        ):
            reply = await client.chat.completions.create(**BODY, **options)
            if not options.get("stream"):
                return reply.id, [choice.message.content for choice in reply.choices]
            chunks = [chunk async for chunk in reply]
            return chunks[0].id, ["".join(chunk.choices[0].delta.content or "" for chunk in chunks)]

    return asyncio.run(scenario())


@pytest.mark.parametrize("options", [{}, {"stream": True}, {"n": 2}])
def test_a_lost_reply_is_given_again_to_a_client_that_names_its_request(session, engine, store, options):
    engine.replies = ["once", "once", "never"]
    reply_id, contents = ask_openai(session, [lose_the_reply, lose_the_reply], **options, **KEY)
    assert contents == ["once"] * options.get("n", 1)
    assert reply_id == store.interactions[0].id
    assert len(store.interactions) == len(engine.log) == options.get("n", 1)


def test_a_reply_that_was_sent_is_not_given_to_a_retry_without_a_name(session, engine, store):
    """Whether it was lost on its way, nobody can tell: the retry may be that of another request."""
    engine.replies = ["sent", "another"]
    assert ask_openai(session, [lose_the_reply])[1] == ["another"]
    assert len(store.interactions) == 2


def test_anthropics_client_says_it_in_the_same_way(session, engine, store):
    engine.replies = ["once", "never"]

    async def scenario():
        async with (
            proxy(session.base_url, [lose_the_reply]) as url,
            AsyncAnthropic(base_url=url, api_key=session.api_key, max_retries=1) as client,
        ):
            return await client.messages.create(model="default", max_tokens=50, messages=USER, **KEY)

    assert asyncio.run(scenario()).content[0].text == "once"
    assert len(store.interactions) == 1


def test_a_retry_waits_for_the_generation_that_still_runs(session, engine, store):
    engine.replies = ["once", "never"]

    async def and_resume(upstream):
        await engine.resume()
        return await lose_the_reply(upstream)

    asyncio.run(engine.pause())
    _, contents = ask_openai(session, [leave_it_running(engine), and_resume], **KEY)
    assert contents == ["once"]
    assert len(store.interactions) == len(engine.log) == 1


def test_a_generation_whose_client_was_cut_off_is_made_anew(session, engine, store):
    engine.replies = ["first", "second", "third"]

    async def after_the_abort(upstream):
        await asyncio.to_thread(engine.ended[0].wait, 10)
        await engine.resume()
        return await lose_the_reply(upstream)

    asyncio.run(engine.pause())
    _, contents = ask_openai(session, [cut_both_sides(engine), after_the_abort], **KEY)
    assert contents == ["second"]
    assert [one.finish_reason for one in engine.log] == [FinishReason.ABORT, FinishReason.STOP]
    assert len(store.interactions) == 1


def content(reply):
    return reply.json()["choices"][0]["message"]["content"]


def test_the_same_body_without_a_word_of_retries_is_another_sample(session, send, store):
    for headers in (None, FIRST, FIRST, None, {"x-stainless-retry-count": "many"}):
        assert send(session, BODY, headers=headers).status_code == 200
    assert len(store.interactions) == 5


def test_a_retry_of_a_request_that_never_arrived_is_the_first(session, send, store):
    assert send(session, BODY, headers=AGAIN).status_code == 200
    assert len(store.interactions) == 1


def test_an_idempotency_key_names_the_request(session, send, engine, store):
    engine.replies = ["a", "b"]
    key = {"idempotency-key": "k1"}
    assert [content(send(session, BODY, headers=key)) for _ in range(3)] == ["a"] * 3
    other = send(session, {**BODY, "temperature": 1}, headers=key)
    assert (other.status_code, other.json()["error"]["code"]) == (400, "idempotency_key_reused")
    assert content(send(session, BODY, headers={"idempotency-key": "k2"})) == "b"
    assert len(store.interactions) == 2


def test_a_retry_of_a_request_that_never_arrived_gets_no_other_ones_reply(session, send, store):
    """The same was asked before on purpose, and read."""
    read = send(session, BODY, headers=FIRST).json()["id"]
    assert send(session, BODY, headers=AGAIN).json()["id"] != read
    assert send(session, BODY, headers={"x-stainless-retry-count": "2"}).json()["id"] != read
    assert len(store.interactions) == 3


@pytest.mark.parametrize("arrive", [(), (0,), (0, 1)])
def test_twins_whose_first_connections_are_refused_get_a_reply_each(session, send, store, arrive):
    counts = ["0" if twin in arrive else "1" for twin in range(2)]
    asked = [send(session, BODY, headers={"x-stainless-retry-count": count}).json()["id"] for count in counts]
    assert len({*asked}) == len(store.interactions) == 2


def test_other_bodies_and_other_sessions_are_other_requests(gateway, open_session, send_to, store):
    one, other = open_session(gateway), open_session(gateway)
    key = {"idempotency-key": "k1"}
    send_to(gateway, one, BODY, headers=key)
    assert send_to(gateway, one, {**BODY, "max_tokens": 9}, headers=key).status_code == 400
    send_to(gateway, other, BODY, headers=key)
    assert len(store.interactions) == 2


def test_token_ids_come_with_the_repeated_reply_too(session, send, engine):
    body = {**BODY, "return_token_ids": True, "logprobs": True}
    first, again = (send(session, body, headers={"idempotency-key": "k1"}).json() for _ in range(2))
    assert first == again
    assert tuple(again["prompt_token_ids"]) == engine.log[0].request.prompt_ids


def in_process(gateway, session):
    async def post(headers=FIRST):
        return await gateway.http_client.post(
            f"{session.base_url}/v1/chat/completions", content=json.dumps(BODY).encode(), headers=headers
        )

    return post


async def until(condition):
    while not condition():
        await asyncio.sleep(0)


@pytest.mark.parametrize("cut_at", [0, 1])
def test_a_twin_that_was_cut_is_made_anew_and_the_finished_one_not_given_twice(gateway, session, engine, store, cut_at):
    engine.replies = ["finished", "anew"]
    engine.replies.insert(cut_at, "cut")
    post = in_process(gateway, session)

    async def cut():
        await engine.pause()
        running = asyncio.ensure_future(post(FIRST))
        await until(engine.begun[cut_at].is_set)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await engine.resume()

    async def scenario():
        if cut_at == 0:
            await cut()
        finished = await post(FIRST)
        if cut_at == 1:
            await cut()
        return content(finished), content(await post(AGAIN))

    assert asyncio.run(scenario()) == ("finished", "anew")
    assert len(store.interactions) == 2


async def leave_while_it_is_stored(post, store):
    """Ask, and leave once the reply is complete; `store.gate` holds it back."""
    store.writing.clear()
    left = asyncio.ensure_future(post())
    await until(store.writing.is_set)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)


def test_a_reply_whose_client_left_while_it_was_stored_is_kept(gateway, session, engine, store):
    engine.replies = ["kept", "never"]
    post = in_process(gateway, session)

    async def scenario():
        store.gate = asyncio.Event()
        await leave_while_it_is_stored(post, store)
        again = asyncio.ensure_future(post(AGAIN))
        await until(lambda: not session.attempts._known)
        store.gate.set()
        return await again

    reply = asyncio.run(scenario())
    assert content(reply) == "kept"
    assert [one.id for one in store.interactions] == [reply.json()["id"]]


def test_a_missed_reply_is_given_once(gateway, session, store):
    post = in_process(gateway, session)

    async def scenario():
        store.gate = asyncio.Event()
        await leave_while_it_is_stored(post, store)
        leaves = asyncio.ensure_future(post(AGAIN))  # and so does the first who asks for it
        await until(lambda: not session.attempts._known)
        leaves.cancel()
        await asyncio.gather(leaves, return_exceptions=True)
        store.gate.set()
        twins = [await post({"x-stainless-retry-count": "2"}) for _ in range(2)]
        return [twin.json()["id"] for twin in twins]

    first, second = asyncio.run(scenario())
    assert [one.id for one in store.interactions] == [first, second]


def test_a_missed_reply_does_not_go_to_one_who_asked_as_often(gateway, session, store):
    post = in_process(gateway, session)

    async def scenario():
        store.gate = asyncio.Event()
        await leave_while_it_is_stored(lambda: post(AGAIN), store)
        store.gate.set()
        return [(await post({"x-stainless-retry-count": count})).json()["id"] for count in ("1", "2")]

    other, own = asyncio.run(scenario())
    assert [one.id for one in store.interactions] == [own, other]


def test_what_a_client_saw_a_part_of_is_not_given_to_another_one(gateway, session, store):
    url = f"{session.base_url}/v1/chat/completions"
    stream = json.dumps({**BODY, "stream": True}).encode()

    async def read(reply):
        return [piece async for piece in reply.aiter_bytes()]

    async def scenario():
        store.gate = asyncio.Event()
        async with gateway.http_client.stream("POST", url, content=stream, headers=FIRST) as reply:
            reading = asyncio.ensure_future(read(reply))
            await until(store.writing.is_set)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        store.gate.set()
        again = await gateway.http_client.post(url, content=stream, headers=AGAIN)
        return again.text

    told = asyncio.run(scenario())
    assert len(store.interactions) == 2
    assert store.interactions[1].id in told
    assert store.interactions[0].id not in told


@pytest.mark.parametrize("way", ["in process", "socket"])
def test_calls_that_were_held_back_longer_than_their_clients_waited_get_a_reply_each(gateway, session, store, way):
    """All that the gateway sees of them are retries of the same count."""

    async def scenario():
        gateway.pause()
        http_client = gateway.http_client if way == "in process" else httpx2.AsyncClient(verify=ssl_context())
        async with AsyncOpenAI(
            base_url=f"{session.base_url}/v1", api_key=session.api_key, http_client=http_client, max_retries=1
        ) as client:
            asked = [client.chat.completions.create(**BODY, timeout=0.2) for _ in range(3)]
            left = await asyncio.gather(*asked, return_exceptions=True)
            assert {type(error) for error in left} == {APITimeoutError}
            asked = [client.chat.completions.create(**BODY, timeout=20, extra_headers=AGAIN) for _ in range(3)]
            later = [asyncio.ensure_future(one) for one in asked]
            gateway.resume()
            return [reply.id for reply in await asyncio.gather(*later)]

    ids = asyncio.run(scenario())
    assert len({*ids}) == 3
    assert {*ids} <= {one.id for one in store.interactions}


def test_a_running_request_is_known_to_its_retry_however_many_came_after_it():
    async def scenario():
        attempts = Attempts()
        keys = [RetryKey(body=bytes([n % 256]), name=str(n)) for n in range(200)]
        started = [await attempts.enter(key) for key in keys]
        retry = asyncio.create_task(attempts.enter(keys[0]))
        await asyncio.sleep(0)
        for attempt in started:
            attempt.storing = True
            attempt.settle(("reply",))
        assert await asyncio.wait_for(retry, 5) is started[0]
        # of the finished ones, the newest are kept
        await attempts.enter(RetryKey(body=b"new", name="new"))
        assert await asyncio.wait_for(attempts.enter(keys[-1]), 5) is started[-1]
        assert await asyncio.wait_for(attempts.enter(keys[0]), 5) is not started[0]

    asyncio.run(scenario())


@pytest.mark.parametrize("gives_up", [False, True])
def test_of_two_requests_with_one_key_only_one_runs_at_a_time(gives_up):
    """Neither has begun to sample when the other one arrives, as on two event loops."""

    async def scenario():
        attempts, key = Attempts(), RetryKey(body=b"the same", name="k1")
        first = await attempts.enter(key)
        second = asyncio.ensure_future(attempts.enter(key))
        await asyncio.sleep(0)
        assert not second.done()
        if gives_up:
            attempts.give_up(first)
        else:
            with suppress(asyncio.CancelledError), attempts.running(first):
                raise asyncio.CancelledError
        again = await asyncio.wait_for(second, 5)
        third = asyncio.ensure_future(attempts.enter(key))
        await asyncio.sleep(0)
        assert not third.done()
        with attempts.running(again):
            again.storing = True
            again.settle(("a reply",))
        return (await asyncio.wait_for(third, 5)).choices

    assert asyncio.run(scenario()) == ("a reply",)


def test_a_request_that_was_refused_before_it_was_sampled_leaves_its_key_free(session, send, engine):
    engine.replies = ["a"]
    key = {"idempotency-key": "k1"}
    for _ in range(2):
        assert send(session, {**BODY, "n": 1000}, headers=key).status_code == 400
    assert content(send(session, BODY, headers=key)) == "a"


def test_a_retry_that_waits_is_refused_when_the_episode_ends(gateway, session, engine, store):
    post = in_process(gateway, session)

    async def scenario():
        await engine.pause()
        first = asyncio.ensure_future(post({"idempotency-key": "k1"}))
        await until(engine.begun[0].is_set)
        again = asyncio.ensure_future(post({"idempotency-key": "k1"}))
        await asyncio.sleep(0)
        assert await gateway.close_session(session) == ()
        return [(await one).status_code for one in (first, again)]

    assert asyncio.run(scenario()) == [410, 410]
    assert store.interactions == []


def test_a_call_that_could_not_be_stored_is_made_anew(session, send, engine, store):
    engine.replies = ["lost", "stored"]
    store.error = "disk full"
    assert send(session, BODY, headers=FIRST).status_code == 500
    store.error = None
    assert content(send(session, BODY, headers=AGAIN)) == "stored"
    assert [one.output["content"] for one in store.interactions] == ["stored"]


class Schedule:
    """Twins that ask the same of one session, each until it has a reply; every one of their attempts has its fate.

    `refused` never arrives, `cut` comes to nothing, `left` loses its client while its reply is stored, `unstored` does
    and is lost then, `lost` is sent and never read, `read` ends the request.
    """

    def __init__(self, fates):
        self.fates = [[*of_twin, "read"] for of_twin in fates]
        self.counts = [0] * len(fates)
        self.attempts = Attempts()
        self.made = 0
        self.stored = []
        """Futures of what is still to be stored, with what it is then."""
        self.running = {}
        self.read = {}

    async def play(self, turns):
        for turn in turns:
            if turn < len(self.fates):
                await self.step(turn)
            elif self.stored:
                self.store(turn % len(self.stored))
            await asyncio.sleep(0)
        while len(self.read) < len(self.fates):
            for twin in range(len(self.fates)):
                await self.step(twin)
            while self.stored:
                self.store(0)
            for _ in range(3):
                await asyncio.sleep(0)
        return self.read

    def store(self, index):
        attempt, reply = self.stored.pop(index)
        attempt.settle(reply)

    async def step(self, twin):
        """Let a twin ask once more, if it is not waiting for a reply."""
        if twin in self.read or (twin in self.running and not self.running[twin].done()):
            return
        fate, count = self.fates[twin][self.counts[twin]], self.counts[twin]
        self.counts[twin] += 1
        if fate == "refused":
            return
        self.running[twin] = asyncio.ensure_future(self.ask(twin, fate, count))
        await asyncio.sleep(0)

    async def ask(self, twin, fate, count):
        attempt = await self.attempts.enter(RetryKey(body=b"the same", name=None, retries=count))
        if attempt.choices:
            reply = attempt.choices
        else:
            self.made += 1
            reply = (f"reply {self.made}",)
            with suppress(asyncio.CancelledError), self.attempts.running(attempt):
                self.make(attempt, reply, fate)
        if fate == "read":
            self.read[twin] = reply[0]

    def make(self, attempt, reply, fate):
        """Make the reply of an attempt as far as its client lets that come."""
        attempt.storing = fate != "cut"
        if fate in {"left", "unstored"}:
            self.stored.append((attempt, reply if fate == "left" else None))
        if fate in {"cut", "left", "unstored"}:
            raise asyncio.CancelledError
        attempt.settle(reply)


FATES = st.sampled_from(["refused", "cut", "left", "unstored", "lost"])


@given(st.lists(st.lists(FATES, max_size=3), min_size=1, max_size=4), st.lists(st.integers(0, 7), max_size=20))
def test_no_two_requests_share_a_reply_whatever_is_lost(fates, turns):
    read = asyncio.run(Schedule(fates).play(turns))
    assert len({*read.values()}) == len(read) == len(fates)


@given(st.integers(0, 3), st.integers(0, 3))
def test_a_reply_that_was_not_sent_is_not_made_twice(refused_before, refused_after):
    schedule = Schedule([["refused"] * refused_before + ["left"] + ["refused"] * refused_after])
    assert asyncio.run(schedule.play([])) == {0: "reply 1"}
    assert schedule.made == 1
