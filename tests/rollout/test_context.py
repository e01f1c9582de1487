import asyncio

import attrs
import pytest
from openai import AsyncOpenAI

from agentrl_core import workflow_context
from agentrl_core.api.context import WorkflowContext


@pytest.fixture
def here():
    return WorkflowContext(
        is_eval=False,
        record_id="r",
        task_id="t",
        sample_index=1,
        base_url="http://gateway/s/secret-token",
        api_key="sk-secret",
        http_client=object(),
    )


def test_outside_an_episode_it_says_where_it_is_known():
    with pytest.raises(LookupError, match="outside an episode"):
        workflow_context.get()
    with pytest.raises(LookupError, match="outside an episode"):
        workflow_context.get_httpx_client()


def test_tasks_and_threads_of_an_episode_know_it(here):
    async def deep():
        return workflow_context.get(), await asyncio.to_thread(workflow_context.get_httpx_client)

    async def episode():
        workflow_context.enter(here)
        return await asyncio.create_task(deep())

    assert asyncio.run(episode()) == (here, here.http_client)


def test_its_repr_shows_no_secret(here):
    assert "secret" not in repr(here)


def test_it_has_areals_names(here):
    async def episode():
        workflow_context.enter(here)
        return workflow_context.get().sample_idx, workflow_context.stat_scope()

    assert asyncio.run(episode()) == (1, "rollout")
    here = attrs.evolve(here, is_eval=True)
    assert asyncio.run(episode()) == (1, "eval-rollout")


def test_borrowed_clients_are_shared_and_outlive_those_who_close_them(play):
    seen = []

    async def run(data, *, base_url, api_key):
        clients = [workflow_context.get_httpx_client(), workflow_context.get_httpx_client(legacy=True)]
        assert await workflow_context.get_httpx_client() is clients[0]
        session = await workflow_context.get_aiohttp_session()
        for client in clients:
            async with AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=client, max_retries=0) as sdk:
                await sdk.chat.completions.create(model="default", messages=data["messages"])
            await client.aclose()
            async with client:
                assert (await client.get(f"{base_url}/health")).status_code == 200
            assert not client.is_closed
        async with session, session.get(f"{base_url}/health") as response:
            assert response.status == 200
        await session.close()
        assert not session.closed
        seen.append((clients[1], session))
        assert workflow_context.get_httpx_client(legacy=True) is clients[1]
        assert await workflow_context.get_aiohttp_session() is session
        return 1.0

    record = play(run).record
    assert record.reward == 1.0, record.detail
    ((client, session),) = seen
    assert client.is_closed
    assert session.closed


def test_an_answer_can_be_scored_while_the_episode_goes_on(play, engine):
    async def run(data, *, base_url, api_key, http_client):
        sdk = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
        for _ in range(3):
            reply = await sdk.chat.completions.create(model="default", messages=data["messages"])
            said = await workflow_context.score(reply.choices[0].message.content)
            if said == 1.0:
                break

    engine.replies = ["3", "<answer>4</answer>", "5"]
    episode = play(run, scorer=lambda answer, reference: float(answer == reference), answer="4")
    assert (episode.record.reward, len(episode.interactions)) == (1.0, 2)


def test_a_scorer_in_another_process_says_where_it_is(here):
    async def episode():
        workflow_context.enter(here)
        await workflow_context.score("4")

    with pytest.raises(LookupError, match="mode: inline"):
        asyncio.run(episode())
