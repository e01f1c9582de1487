import asyncio

import httpx2
import openai
import pytest
from pydantic import BaseModel

from agentrl_core.types import Outcome
from agentrl_openai.routing import clients, route_to_policy

HELLO = [{"role": "user", "content": "hello"}]


class Answer(BaseModel):
    value: int


async def _chat(client):
    return (await client.chat.completions.create(model="m", messages=HELLO)).choices[0].message.content


async def _chat_stream(client):
    stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


async def _stream_helper(client):
    async with client.chat.completions.stream(model="m", messages=HELLO) as stream:
        return (await stream.get_final_completion()).choices[0].message.content


async def _responses(client):
    return (await client.responses.create(model="m", input="hello")).output_text


async def _responses_stream(client):
    async with client.responses.stream(model="m", input="hello") as stream:
        return (await stream.get_final_response()).output_text


async def _raw(client):
    raw = await client.chat.completions.with_raw_response.create(model="m", messages=HELLO)
    return raw.parse().choices[0].message.content


async def _options(client):
    return await _chat(client.with_options(timeout=20.0, max_retries=5))


WAYS = {way.__name__.strip("_"): way for way in (
    _chat, _chat_stream, _stream_helper, _responses, _responses_stream, _raw, _options,
)}  # fmt: skip


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
    blocking = openai.OpenAI()

    def talk():
        stream = blocking.chat.completions.create(model="m", messages=HELLO, stream=True)
        first = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        return first, blocking.responses.create(model="m", input="hello").output_text

    texts, episode = in_episode(lambda: asyncio.to_thread(talk))
    assert texts == ("the policy", "the policy"), episode.record.detail


def test_a_blocking_client_on_the_event_loop_is_refused(world, in_episode):
    async def talk():
        openai.OpenAI().responses.create(model="m", input="hello")

    _, episode = in_episode(talk)
    assert (episode.record.outcome, episode.record.reason) == (Outcome.FAILED, "RuntimeError")
    assert "use AsyncOpenAI there" in episode.record.detail
    assert world.engine.log == []


def test_structured_outputs_come_back_as_their_class(world, client, in_episode):
    world.says('{"value": 3}')

    async def talk():
        return await client.chat.completions.parse(model="m", messages=HELLO, response_format=Answer)

    reply, episode = in_episode(talk)
    assert reply.choices[0].message.parsed == Answer(value=3), episode.record.detail
    assert reply.id == episode.interactions[0].id


def judge(answers):
    """A client of another provider, whose calls stay its own."""

    def answer(request):
        answers.append(request)
        message = {"role": "assistant", "content": "elsewhere"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return httpx2.Response(200, json={"id": "x", "object": "chat.completion", "created": 0, "model": "j",
                                          "choices": [choice], "data": [], "usage": None})  # fmt: skip

    return httpx2.AsyncClient(transport=httpx2.MockTransport(answer))


def test_a_client_with_an_address_of_its_own_stays_there(world, in_episode):
    asked = []
    other = openai.AsyncOpenAI(base_url="http://judge.test/v1", http_client=judge(asked))
    text, episode = in_episode(lambda: _chat(other))
    assert (text, len(asked)) == ("elsewhere", 1)
    assert asked[0].headers["authorization"] == "Bearer sk-users-own"
    assert episode.record.reason == "no_llm_call"


def test_the_addresses_of_the_policy_may_be_named(world, client, in_episode):
    world.says("the policy")
    asked = []
    judging = openai.AsyncOpenAI(http_client=judge(asked))
    local = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1")

    async def talk():
        return await _chat(judging), await _chat(local)

    texts, _ = in_episode(talk, base_urls=[str(local.base_url)])
    assert texts == ("elsewhere", "the policy")


def test_what_a_policy_cannot_answer_stays_where_it_was(world, in_episode):
    asked = []
    embedding = openai.AsyncOpenAI(http_client=judge(asked))

    async def embed():
        await embedding.embeddings.create(model="e", input="hello", encoding_format="float")
        return "done"

    assert in_episode(embed)[0] == "done"
    assert [request.url.path for request in asked] == ["/v1/embeddings"]


def test_an_environment_with_a_base_url_says_where_the_policys_clients_lead(world, in_episode, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    world.says("the policy")
    assert in_episode(lambda: _chat(openai.AsyncOpenAI()))[0] == "the policy"


def test_outside_of_it_clients_are_their_own(world, client, in_episode):
    asked = []
    free = openai.AsyncOpenAI(http_client=judge(asked))

    async def run(data):
        return 1.0 if await _chat(free) == "elsewhere" else 0.0

    [episode] = world.run(run, {"messages": HELLO})
    assert (len(asked), episode.record.reason) == (1, "no_llm_call")
    with pytest.raises(LookupError, match="outside an episode"), route_to_policy():
        pass
    assert clients().current() is None


def test_a_client_that_is_closed_closes_nothing_for_others(world, client, in_episode):
    world.says("the policy")

    async def talk():
        async with openai.AsyncOpenAI() as short:
            await _chat(short)
        return await _chat(client)

    text, episode = in_episode(talk)
    assert (text, len(episode.interactions)) == ("the policy", 2)


def test_a_refusal_is_the_sdks_own_error(world, client, in_episode):
    async def talk():
        try:
            await client.chat.completions.create(model="m", messages=[])
        except openai.BadRequestError as error:
            return error.status_code

    assert in_episode(talk)[0] == 400
