"""Clients that leave, episodes that end, and what is stored then."""

import asyncio
import socket

import openai
import pytest
from openai import AsyncOpenAI

from agentrl_core.chat.template_check import Stability, TemplateCheck
from agentrl_core.errors import RunError, StoreError
from agentrl_core.types import FinishReason

USER = [{"role": "user", "content": "hello"}]
RAW = b'{"messages": [{"role": "user", "content": "hello"}]'


def sdk(gateway, session):
    return AsyncOpenAI(
        base_url=session.base_url, api_key=session.api_key, http_client=gateway.http_client, max_retries=0
    )


def ask(client, **options):
    return client.chat.completions.create(model="default", messages=USER, **options)


async def begun(engine, number=0):
    """Wait until a call is in the engine."""
    assert await asyncio.to_thread(engine.begun[number].wait, 5)


@pytest.mark.parametrize("stream", [b"", b', "stream": true'])
def test_a_client_that_disconnects_aborts_its_generation(gateway, session, engine, store, stream):
    asyncio.run(engine.pause())
    host, port = gateway.url.removeprefix("http://").split(":")
    body = RAW + stream + b"}"
    path = session.base_url.removeprefix(gateway.url) + "/v1/chat/completions"
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head + body)
        asyncio.run(begun(engine))
    assert engine.ended[0].wait(5)
    assert engine.log[0].finish_reason is FinishReason.ABORT
    assert store.interactions == []
    assert gateway.calls == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_cancelled_agent_aborts_its_generation(gateway, session, engine, store, stream):
    asyncio.run(engine.pause())

    async def agent():
        reply = await ask(sdk(gateway, session), stream=stream)
        async for _ in reply:
            pass

    async def scenario():
        task = asyncio.create_task(agent())
        await begun(engine)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.log[0].finish_reason is FinishReason.ABORT

    asyncio.run(scenario())
    assert store.interactions == []


def test_a_stream_that_is_left_early_aborts_its_generation(gateway, session, engine, store):
    engine.replies = ["a long story"]

    async def scenario():
        async with await ask(sdk(gateway, session), stream=True) as stream:
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break

    asyncio.run(scenario())
    assert engine.log[0].finish_reason is FinishReason.ABORT
    assert len(engine.log[0].ids) < len("a long story")
    assert store.interactions == []


@pytest.mark.parametrize("stream", [False, True])
def test_closing_a_session_aborts_what_runs_and_returns_what_is_stored(gateway, session, engine, store, stream):
    async def scenario():
        client = sdk(gateway, session)
        await ask(client)
        await engine.pause()

        async def last():
            reply = await ask(client, stream=stream)
            return [chunk async for chunk in reply]

        running = asyncio.create_task(last())
        await begun(engine, 1)
        interactions = await gateway.close_session(session)
        with pytest.raises(openai.APIError, match="episode has ended"):
            await running
        return interactions

    interactions = asyncio.run(scenario())
    assert list(interactions) == store.interactions
    assert len(interactions) == 1
    assert engine.log[1].finish_reason is FinishReason.ABORT


def test_closing_waits_for_writes_and_keeps_the_order_of_completion(gateway, session, store):
    async def scenario():
        client = sdk(gateway, session)
        store.gate = asyncio.Event()
        calls = [asyncio.create_task(ask(client)) for _ in range(3)]
        await asyncio.to_thread(store.writing.wait, 5)
        closing = asyncio.create_task(gateway.close_session(session))
        await asyncio.sleep(0)
        assert not closing.done()
        store.gate.set()
        await asyncio.gather(*calls, return_exceptions=True)
        return await closing

    interactions = asyncio.run(scenario())
    assert interactions
    assert [interaction.seq for interaction in interactions] == list(range(len(interactions)))
    assert sorted(store.interactions, key=lambda one: one.seq) == list(interactions)


def test_a_reply_waits_for_the_store(gateway, session, store):
    async def scenario():
        store.gate = asyncio.Event()
        call = asyncio.create_task(ask(sdk(gateway, session)))
        await asyncio.to_thread(store.writing.wait, 5)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not call.done()
        assert store.interactions == []
        store.gate.set()
        reply = await call
        assert store.interactions[0].id == reply.id

    asyncio.run(scenario())


def test_a_client_that_leaves_while_its_finished_call_is_written_does_not_undo_it(gateway, session, store):
    async def scenario():
        store.gate = asyncio.Event()
        call = asyncio.create_task(ask(sdk(gateway, session)))
        await asyncio.to_thread(store.writing.wait, 5)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        store.gate.set()
        return await gateway.close_session(session)

    assert list(asyncio.run(scenario())) == store.interactions
    assert len(store.interactions) == 1


def test_a_write_that_fails_leaves_no_trace_in_the_session(gateway, session, store):
    async def scenario():
        store.error = "disk full"
        with pytest.raises(openai.InternalServerError):
            await ask(sdk(gateway, session))
        return await gateway.close_session(session)

    assert asyncio.run(scenario()) == ()
    assert gateway.calls == 0


def test_a_client_that_leaves_in_the_middle_of_its_body_calls_nothing(gateway, session, send, engine):
    host, port = gateway.url.removeprefix("http://").split(":")
    path = session.base_url.removeprefix(gateway.url) + "/v1/chat/completions"
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\n".encode()
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head + RAW)
    send(session, {"messages": USER})
    gateway.close()  # waits for what the server still does
    assert len(engine.log) == 1


def test_a_port_in_use_is_an_error_that_says_what_to_do(gateway, make_gateway):
    port = int(gateway.url.rsplit(":", 1)[1])
    with pytest.raises(RunError, match=rf"port {port} on 127.0.0.1 is in use; choose another gateway.port"):
        make_gateway(port=port)


def test_closing_the_gateway_frees_its_port_and_can_be_repeated(gateway, make_gateway):
    port = int(gateway.url.rsplit(":", 1)[1])
    gateway.close()
    gateway.close()
    assert make_gateway(port=port).url == gateway.url


def test_a_gateway_that_was_not_started_says_so(chat, engine, store):
    from agentrl_core.config.sampling_sections import GatewayConfig, SamplingConfig
    from agentrl_core.gateway import Gateway

    gateway = Gateway(
        engine=engine, chat=chat, store=store, run_id="r", sampling=SamplingConfig(), config=GatewayConfig(), seed=0
    )
    with pytest.raises(RunError, match="not started"):
        _ = gateway.url
    gateway.close()


@pytest.mark.parametrize(("history", "warned"), [("exact", True), ("template", False)])
def test_what_a_template_does_with_history_is_told(make_gateway, chat, monkeypatch, history, warned):
    verdict = TemplateCheck(stability=Stability.PATCHED, changed=("reasoning",))
    monkeypatch.setitem(vars(chat), "verdict", verdict)
    notice = make_gateway(history=history).history_notice
    assert "rewrites past turns with reasoning" in notice
    assert ("when you serve the model, keep it too" in notice) == warned


@pytest.mark.parametrize(("changed", "warned"), [("plain text", True), ("reasoning", False)])
def test_a_template_that_changes_past_turns_is_told_once_there_are_such_turns(
    gateway, session, chat, monkeypatch, changed, warned
):
    monkeypatch.setitem(vars(chat), "verdict", TemplateCheck(stability=Stability.PATCHED, changed=(changed,)))

    async def two_turns():
        client = sdk(gateway, session)
        first = await ask(client, max_tokens=4)
        told = gateway.notices(offers_tools=False)
        past = [*USER, {"role": "assistant", "content": first.choices[0].message.content}, *USER]
        await client.chat.completions.create(model="default", messages=past, max_tokens=4)
        return told

    assert asyncio.run(two_turns()) == []
    assert gateway.notices(offers_tools=False) == ([gateway.history_notice] if warned else [])


@pytest.mark.parametrize("stream", [False, True])
def test_cpu_time_is_counted_but_waiting_is_not(gateway, session, engine, stream):
    asyncio.run(engine.pause())

    async def read():
        reply = await ask(sdk(gateway, session), stream=stream)
        return [chunk async for chunk in reply] if stream else reply

    async def scenario():
        call = asyncio.create_task(read())
        await begun(engine)
        await asyncio.sleep(0.2)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await engine.resume()
        assert await read()

    asyncio.run(scenario())
    assert 0 < gateway.cpu_seconds < 0.15


def test_an_engine_that_aborts_by_itself_is_an_error_not_a_reply(gateway, session, engine, store):
    async def scenario():
        await engine.pause()
        call = asyncio.create_task(ask(sdk(gateway, session)))
        await begun(engine)
        (request_id,) = session.running
        await engine.abort(request_id)
        with pytest.raises(openai.InternalServerError, match="aborted"):
            await call

    asyncio.run(scenario())
    assert store.interactions == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_store_that_fails_is_the_gateways_end_and_not_the_requests_fault(gateway, session, store, stream):
    async def full(run_id, interaction):
        raise StoreError("database or disk is full; free space")

    async def scenario():
        client = sdk(gateway, session)
        if stream:
            async for _ in await ask(client, stream=True):
                pass
        else:
            await ask(client)

    store.add_interaction = full
    with pytest.raises(openai.APIError, match="disk is full"):
        asyncio.run(scenario())
    assert isinstance(gateway.fatal, StoreError)


def test_a_refused_request_is_not_the_gateways_end(gateway, session):
    with pytest.raises(openai.BadRequestError):
        asyncio.run(ask(sdk(gateway, session), temperature="hot"))
    assert gateway.fatal is None


CALL = {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}


@pytest.mark.parametrize(
    ("kind", "turns"),
    [
        ("plain text", [{"content": "b"}]),
        ("tool calls", [{"content": "", **CALL}]),
        ("reasoning", [{"content": "b", "reasoning_content": "why"}, {"content": "<think>why</think>b"}]),
        ("reasoning before tool calls", [{"content": "", "reasoning_content": "why", **CALL}]),
    ],
)
def test_a_template_concerns_turns_of_the_kinds_that_it_changes(kind, turns):
    check = TemplateCheck(stability=Stability.FORKS, forked=(kind,))
    assert all(check.concerns([turn]) for turn in turns)
    others = {"plain text": {"content": "b", **CALL}}.get(kind, {"content": "b"})
    assert not check.concerns([others])
