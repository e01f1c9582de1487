"""Calls wait while the gateway is paused; what is being generated goes on with the weights that come."""

import asyncio

import pytest

from agentrl_core.api.weights import DirectoryWeights


@pytest.fixture
def ask(gateway):
    def ask(session, text="hello", **fields):
        body = {"messages": [{"role": "user", "content": text}], **fields}
        return gateway.http_client.post(session.base_url + "/v1/chat/completions", json=body)

    return ask


async def turns(count=20):
    """Let everything run that can."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_new_calls_wait_and_running_ones_get_the_new_weights(gateway, session, engine, store, ask, model_dir):
    async def scenario():
        await engine.pause()
        running = asyncio.create_task(ask(session))
        await asyncio.to_thread(engine.begun[0].wait, 5)
        with gateway.paused():
            waiting = asyncio.create_task(ask(session, "later"))
            await engine.load_weights(1, DirectoryWeights(model_dir))
            await engine.resume()
            assert (await running).status_code == 200
            await turns()
            assert not engine.begun[1].is_set()
        return (await waiting).status_code

    assert asyncio.run(scenario()) == 200
    assert [interaction.versions[-1][0] for interaction in store.interactions] == [1, 1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_session_is_paused_alone(gateway, session, open_session, engine, ask, stream):
    other = open_session(gateway)

    async def scenario():
        gateway.pause(session)
        waiting = asyncio.create_task(ask(session, stream=stream))
        assert (await ask(other)).status_code == 200
        await turns()
        assert not waiting.done()
        gateway.resume(session)
        return (await waiting).status_code

    assert asyncio.run(scenario()) == 200


def test_a_pause_may_be_ended_from_another_thread(gateway, session, ask):
    async def scenario():
        gateway.pause()
        waiting = asyncio.create_task(ask(session))
        await turns()
        await asyncio.to_thread(gateway.resume)
        return (await asyncio.wait_for(waiting, 5)).status_code

    assert asyncio.run(scenario()) == 200


def test_waiting_ends_with_503_and_when_to_come_again(make_gateway, open_session):
    gateway = make_gateway(pause_timeout_s=0.05)
    session = open_session(gateway)
    gateway.pause()
    body = {"messages": [{"role": "user", "content": "hello"}]}
    reply = asyncio.run(gateway.http_client.post(session.base_url + "/chat/completions", json=body))
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "paused")
    assert reply.headers["retry-after"] == "1"


def test_an_episode_that_ends_meanwhile_is_gone(gateway, session, ask):
    async def scenario():
        gateway.pause()
        waiting = asyncio.create_task(ask(session))
        await turns()
        await gateway.close_session(session)
        gateway.resume()
        return (await waiting).status_code

    assert asyncio.run(scenario()) == 410


def test_a_paused_gateway_is_healthy_and_can_be_controlled(rest):
    async def scenario():
        rest.gateway.pause()
        health = await rest.post("/health", method="GET")
        opened = await rest.start()
        listed = await rest.post("/rl/sessions", method="GET")
        ended = await rest.post("/rl/end_session", key=opened["api_key"])
        return [reply.status_code for reply in (health, listed, ended)]

    assert asyncio.run(scenario()) == [200, 200, 200]
