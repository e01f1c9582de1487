import asyncio

import anthropic
import httpx2
import pytest

from agentrl_anthropic.routing import clients, route_to_policy
from agentrl_core.types import Outcome

HELLO = [{"role": "user", "content": "hello"}]
ASKED = {"model": "claude-haiku-4-5", "max_tokens": 500, "messages": HELLO}


def text_of(reply):
    return "".join(block.text for block in reply.content if block.type == "text")


async def _create(client):
    return text_of(await client.messages.create(**ASKED))


async def _stream(client):
    async with client.messages.stream(**ASKED) as stream:
        return "".join([piece async for piece in stream.text_stream])


async def _events(client):
    stream = await client.messages.create(**ASKED, stream=True)
    return "".join([event.delta.text async for event in stream if event.type == "content_block_delta"])


async def _beta(client):
    return text_of(await client.beta.messages.create(**ASKED))


async def _raw(client):
    raw = await client.messages.with_raw_response.create(**ASKED)
    return text_of(await raw.parse())


async def _options(client):
    return await _create(client.with_options(timeout=20.0, max_retries=5))


WAYS = {way.__name__.strip("_"): way for way in (_create, _stream, _events, _beta, _raw, _options)}


@pytest.fixture
def in_episode(world):
    """Call something inside `route_to_policy()` of one episode; what it gives, and the episode."""

    def play(function, **settings):
        found = []

        async def run(data):
            with route_to_policy(**settings):
                found.append(await function())

        [episode] = world.run(run, {"messages": HELLO})
        return found[0] if found else None, episode

    return play


@pytest.mark.parametrize("way", WAYS)
def test_every_call_of_a_client_answers_with_the_policy(world, client, in_episode, way):
    world.says("the policy")
    text, episode = in_episode(lambda: WAYS[way](client))
    assert text == "the policy", episode.record.detail
    assert [item.output_ids for item in episode.interactions] == [entry.ids for entry in world.engine.log]


def test_a_blocking_client_answers_with_the_policy_on_a_thread(world, in_episode):
    world.says("the policy")
    blocking = anthropic.Anthropic()

    def talk():
        with blocking.messages.stream(**ASKED) as stream:
            first = "".join(stream.text_stream)
        return first, text_of(blocking.messages.create(**ASKED))

    texts, episode = in_episode(lambda: asyncio.to_thread(talk))
    assert texts == ("the policy", "the policy"), episode.record.detail


def test_a_blocking_client_on_the_event_loop_is_refused(world, in_episode):
    async def talk():
        anthropic.Anthropic().messages.create(**ASKED)

    _, episode = in_episode(talk)
    assert (episode.record.outcome, episode.record.reason) == (Outcome.FAILED, "RuntimeError")
    assert "use AsyncAnthropic there" in episode.record.detail


def test_the_sdks_tool_runner_is_one_chain(world, client, in_episode, call):
    @anthropic.beta_async_tool
    async def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    async def talk():
        runner = client.beta.messages.tool_runner(**ASKED, tools=[add])
        return text_of(await runner.until_done())

    world.says(call("add", a=1, b=2), "It is 3.")
    text, episode = in_episode(talk)
    assert text == "It is 3.", episode.record.detail
    first, second = episode.interactions
    assert (first.parent, second.parent, second.messages[0]["content"]) == (None, first.id, "3")
    assert episode.full_ids(second) == world.engine.log[-1].request.prompt_ids + world.engine.log[-1].ids


def judge(answers):
    """A client of another provider, whose calls stay its own."""

    def answer(request):
        answers.append(request)
        return httpx2.Response(200, json={
            "id": "msg_x", "type": "message", "role": "assistant", "model": "j", "stop_reason": "end_turn",
            "stop_sequence": None, "content": [{"type": "text", "text": "elsewhere"}],
            "usage": {"input_tokens": 1, "output_tokens": 1},
        })  # fmt: skip

    return httpx2.AsyncClient(transport=httpx2.MockTransport(answer))


def test_a_client_with_an_address_of_its_own_stays_there(world, in_episode):
    asked = []
    other = anthropic.AsyncAnthropic(base_url="http://judge.test", http_client=judge(asked))
    text, episode = in_episode(lambda: _create(other))
    assert (text, len(asked), episode.record.reason) == ("elsewhere", 1, "no_llm_call")
    assert asked[0].headers["authorization"] == "Bearer sk-users-own"


def test_the_addresses_of_the_policy_may_be_named(world, in_episode):
    world.says("the policy")
    asked = []
    judging = anthropic.AsyncAnthropic(http_client=judge(asked))
    local = anthropic.AsyncAnthropic(base_url="http://127.0.0.1:9")

    async def talk():
        return await _create(judging), await _create(local)

    assert in_episode(talk, base_urls=["http://127.0.0.1:9/"])[0] == ("elsewhere", "the policy")


def test_an_environment_with_a_base_url_says_where_the_policys_clients_lead(world, in_episode, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    world.says("the policy")
    assert in_episode(lambda: _create(anthropic.AsyncAnthropic()))[0] == "the policy"


def test_outside_of_it_clients_are_their_own(world):
    asked = []
    free = anthropic.AsyncAnthropic(http_client=judge(asked))

    async def run(data):
        return 1.0 if await _create(free) == "elsewhere" else 0.0

    [episode] = world.run(run, {"messages": HELLO})
    assert (len(asked), episode.record.reason) == (1, "no_llm_call")
    with pytest.raises(LookupError, match="outside an episode"), route_to_policy():
        pass
    assert clients().current() is None
