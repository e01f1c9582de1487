import asyncio

import pytest

from agentrl_core import workflow_context
from agentrl_core.rollout.context import WorkflowContext


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
