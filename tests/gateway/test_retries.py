"""A client that asks again for what it missed gets just that; every logical call is in the store once."""

import asyncio
import json
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anthropic._base_client
import openai._base_client
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

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
def test_a_lost_reply_is_given_again(session, engine, store, options):
    engine.replies = ["once", "once", "never"]
    reply_id, contents = ask_openai(session, [lose_the_reply, lose_the_reply], **options)
    assert contents == ["once"] * options.get("n", 1)
    assert reply_id == store.interactions[0].id
    assert len(store.interactions) == len(engine.log) == options.get("n", 1)


def test_anthropics_client_says_it_in_the_same_way(session, engine, store):
    engine.replies = ["once", "never"]

    async def scenario():
        async with (
            proxy(session.base_url, [lose_the_reply]) as url,
            AsyncAnthropic(base_url=url, api_key=session.api_key, max_retries=1) as client,
        ):
            return await client.messages.create(model="default", max_tokens=50, messages=USER)

    assert asyncio.run(scenario()).content[0].text == "once"
    assert len(store.interactions) == 1


def test_a_retry_waits_for_the_generation_that_still_runs(session, engine, store):
    engine.replies = ["once", "never"]

    async def and_resume(upstream):
        await engine.resume()
        return await lose_the_reply(upstream)

    asyncio.run(engine.pause())
    _, contents = ask_openai(session, [leave_it_running(engine), and_resume])
    assert contents == ["once"]
    assert len(store.interactions) == len(engine.log) == 1


def test_a_generation_whose_client_was_cut_off_is_made_anew(session, engine, store):
    engine.replies = ["first", "second"]

    async def after_the_abort(upstream):
        await asyncio.to_thread(engine.ended[0].wait, 10)
        await engine.resume()
        return await lose_the_reply(upstream)

    asyncio.run(engine.pause())
    _, contents = ask_openai(session, [cut_both_sides(engine), after_the_abort])
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


def test_a_retry_means_the_latest_of_equal_requests(session, send, engine):
    engine.replies = ["read", "lost", "never"]
    for _ in range(2):
        send(session, BODY, headers=FIRST)
    assert content(send(session, BODY, headers=AGAIN)) == "lost"
    assert content(send(session, BODY, headers={"x-stainless-retry-count": "2"})) == "lost"


def test_twins_get_a_reply_each(session, send, engine, store):
    engine.replies = ["one", "other", "never"]
    asked = [send(session, BODY, headers=FIRST).json()["id"] for _ in range(2)]
    again = [send(session, BODY, headers=AGAIN).json()["id"] for _ in range(2)]
    assert sorted(again) == sorted(asked)
    assert len(store.interactions) == 2


def test_other_bodies_and_other_sessions_are_other_requests(gateway, open_session, send_to, store):
    one, other = open_session(gateway), open_session(gateway)
    send_to(gateway, one, BODY, headers=FIRST)
    send_to(gateway, one, {**BODY, "max_tokens": 9}, headers=AGAIN)
    send_to(gateway, other, BODY, headers=AGAIN)
    assert len(store.interactions) == 3


def test_token_ids_come_with_the_repeated_reply_too(session, send, engine):
    body = {**BODY, "return_token_ids": True, "logprobs": True}
    first, again = (send(session, body, headers=headers).json() for headers in (FIRST, AGAIN))
    assert first == again
    assert tuple(again["prompt_token_ids"]) == engine.log[0].request.prompt_ids


def in_process(gateway, session):
    async def post(headers):
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


def test_a_reply_whose_client_left_while_it_was_stored_is_kept(gateway, session, engine, store):
    engine.replies = ["kept", "never"]
    post = in_process(gateway, session)

    async def scenario():
        store.gate = asyncio.Event()
        left = asyncio.ensure_future(post(FIRST))
        await until(store.writing.is_set)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        again = asyncio.ensure_future(post(AGAIN))
        await until(lambda: session.attempts._known[0].repeats == 1)
        store.gate.set()
        return await again

    reply = asyncio.run(scenario())
    assert content(reply) == "kept"
    assert [one.id for one in store.interactions] == [reply.json()["id"]]


def test_a_retry_that_waits_is_refused_when_the_episode_ends(gateway, session, engine, store):
    post = in_process(gateway, session)

    async def scenario():
        await engine.pause()
        first = asyncio.ensure_future(post(FIRST))
        await until(engine.begun[0].is_set)
        again = asyncio.ensure_future(post(AGAIN))
        await until(lambda: session.attempts._known[0].repeats == 1)
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
