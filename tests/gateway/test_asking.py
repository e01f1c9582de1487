"""Calls that come as values: by the same gate, rules and records as those over HTTP."""

import asyncio

import attrs
import pytest

from agentrl_core.api.audit import digested
from agentrl_core.errors import EngineError, RequestError
from agentrl_core.gateway.call_types import ChatRequest
from agentrl_core.types import FinishReason

REQUEST = ChatRequest(api="completions", prompts=((7, 8),), stop_token_ids=(5,))


def test_a_call_is_stored_and_answered(gateway, session, engine, store):
    reply = asyncio.run(gateway.ask(session, REQUEST, "gen-"))
    (interaction,) = store.interactions
    assert digested(reply.first.interaction) == interaction == session.interactions[0]
    assert interaction.id.startswith("gen-")
    assert (interaction.prompt_ids, interaction.output_ids) == ((7, 8), engine.log[0].ids)
    assert interaction.sampling.stop_token_ids[-1] == 5
    assert gateway.calls == 1
    assert gateway.cpu_seconds > 0


def test_a_refusal_is_raised_and_remembered(gateway, session):
    with pytest.raises(RequestError, match="prompt is empty"):
        asyncio.run(gateway.ask(session, ChatRequest(api="completions", prompts=((),)), "gen-"))
    assert session.refusal.startswith("400 invalid_value: prompt is empty")
    assert gateway.fatal is None


def test_the_end_of_the_engine_is_the_gateways(gateway, session, engine):
    engine.replies = [EngineError("the device is lost")]
    with pytest.raises(RequestError) as caught:
        asyncio.run(gateway.ask(session, REQUEST, "gen-"))
    assert caught.value.status == 500
    assert str(gateway.fatal) == "the device is lost"


def test_it_waits_while_the_gateway_is_paused(gateway, session, engine):
    async def scenario():
        with gateway.paused():
            call = asyncio.create_task(gateway.ask(session, REQUEST, "gen-"))
            done, _ = await asyncio.wait({call}, timeout=0.1)
            assert not done
        await call

    asyncio.run(scenario())
    assert len(engine.log) == 1


def test_a_cancelled_call_is_aborted_and_not_stored(gateway, session, engine, store):
    async def scenario():
        await engine.pause()
        call = asyncio.create_task(gateway.ask(session, REQUEST, "gen-"))
        while not engine.begun[0].is_set():
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(scenario())
    assert engine.log[0].finish_reason is FinishReason.ABORT
    assert store.interactions == []


def test_an_ended_session_takes_no_call(gateway, session):
    asyncio.run(gateway.close_session(session))
    with pytest.raises(RequestError, match="this episode has ended"):
        asyncio.run(gateway.ask(session, REQUEST, "gen-"))


@pytest.mark.parametrize("n", [1, 2])
def test_a_call_that_is_overtaken_by_the_end_of_its_episode_does_not_reach_the_engine(gateway, session, engine, n):
    call = gateway._policy_calls.begin(session, attrs.evolve(REQUEST, n=n), "gen-")
    asyncio.run(gateway.close_session(session))
    with pytest.raises(RequestError, match="episode has ended"):
        asyncio.run(call.complete())
    assert not engine.begun[0].is_set()
    assert not session.running
