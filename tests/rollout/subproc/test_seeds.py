"""The agents of AReaL's own guides, word for word but for import lines, in the modes that they are written for."""

import pytest
from tests import reward_calls

from agentrl_core import AsyncRewardWrapper, ModelRequest, RolloutWorkflow
from agentrl_core.config.component import Component
from agentrl_core.errors import ConfigError
from agentrl_core.rollout.workflows import resolve_workflow, with_options
from agentrl_core.types import Outcome

GUIDE = """
import os

from openai import AsyncOpenAI, OpenAI

from agentrl_core import AgentWorkflow, AsyncRewardWrapper, AsyncSampler, workflow_context


def compute_reward(response, answer):
    return float(response.choices[0].message.content == answer)


class MyAgent:
    async def run(self, data, **extra_kwargs):
        # Get injected client and URL
        http_client = extra_kwargs.get("http_client")
        base_url = extra_kwargs.get("base_url") or os.getenv("OPENAI_BASE_URL")
        api_key = extra_kwargs.get("api_key") or os.getenv("OPENAI_API_KEY")

        # Use standard OpenAI SDK
        client = AsyncOpenAI(
            base_url=base_url,
            api_key=api_key,
            http_client=http_client,
            max_retries=0,
        )

        response = await client.chat.completions.create(
            model="default",
            messages=data["messages"],
        )

        # Return reward (float or dict[str, float])
        return compute_reward(response, data["answer"])


class MySyncAgent:
    async def run(self, data, **extra_kwargs):
        # In subproc mode, base_url and api_key come from environment
        client = OpenAI(
            base_url=os.getenv("OPENAI_BASE_URL"),
            api_key=os.getenv("OPENAI_API_KEY"),
        )

        response = client.chat.completions.create(
            model="default",
            messages=data["messages"],
        )

        return compute_reward(response, data["answer"])


class MyDummyKeyAgent:
    async def run(self, data, **extra_kwargs):
        client = OpenAI(
            base_url=os.getenv("OPENAI_BASE_URL"),
            api_key="DUMMY",  # Not used by AReaL
        )

        response = client.chat.completions.create(
            model="default",
            messages=data["messages"],
        )

        return compute_reward(response, data["answer"])


class MyAgentWorkflow(AgentWorkflow):
    async def run(self, data, **extra_kwargs):
        # Get pre-configured client from extra_kwargs
        http_client = extra_kwargs.get("http_client")
        base_url = extra_kwargs.get("base_url") or os.getenv("OPENAI_BASE_URL")
        api_key = extra_kwargs.get("api_key") or os.getenv("OPENAI_API_KEY")

        # Pass to SDK constructor
        client = AsyncOpenAI(
            base_url=base_url,
            api_key=api_key,
            http_client=http_client,
            max_retries=0,
        )

        response = await client.chat.completions.create(model="default", messages=data["messages"])
        return {response.id: compute_reward(response, data["answer"])}


class VersionedURL(MyAgent):
    async def run(self, data, **extra_kwargs):
        return await super().run(data, **extra_kwargs | {"base_url": extra_kwargs["base_url"] + "/v1"})


class Leaving:
    async def run(self, data, *, http_client, **extra_kwargs):
        async with AsyncOpenAI(**extra_kwargs_of(extra_kwargs), http_client=http_client) as client:
            resp = await client.chat.completions.create(model="default", messages=data["messages"])
        return compute_reward(resp, data["answer"])


def extra_kwargs_of(extra_kwargs):
    return {"base_url": extra_kwargs["base_url"], "api_key": extra_kwargs["api_key"]}


class FromEnvironment:
    async def run(self, data):
        async with AsyncOpenAI() as client:
            resp = await client.chat.completions.create(model="default", messages=data["messages"])
        return compute_reward(resp, data["answer"])


class FromContext:
    def __init__(self, bonus: float = 0.0):
        self.bonus = bonus

    async def run(self, data):
        here = workflow_context.get()
        client = AsyncOpenAI(
            base_url=here.base_url, api_key=here.api_key, http_client=await workflow_context.get_httpx_client()
        )
        session = await workflow_context.get_aiohttp_session()
        async with session.get(f"{here.base_url}/health") as response:
            assert (await response.json())["status"] == "ok"
        reply = await client.chat.completions.create(model="default", messages=data["messages"])
        assert workflow_context.stat_scope() == "rollout"
        return self.bonus + compute_reward(reply, data["answer"])


class MySampler(AsyncSampler):
    async def run(self, task):
        response = await self.create_chat_completions(task.messages)
        self.record.meta_infos["answer"] = response.choices[0].message.content

    async def evaluate_record(self, record) -> float:
        return float(record.meta_infos["answer"] == record.task.answer) * self.config.get("most", 1.0)


class ByTurns:
    # The asynchronous agents above, one in each episode: a worker for each would take its time to start.
    def __init__(self):
        self.agents = [FromContext(), FromEnvironment(), Leaving(), MyAgentWorkflow()]

    async def run(self, data, *, base_url, api_key, http_client):
        agent = self.agents.pop()
        injected = {"base_url": base_url, "api_key": api_key, "http_client": http_client}
        return await agent.run(data, **(injected if isinstance(agent, (Leaving, MyAgentWorkflow)) else {}))


def reward(answer, reference):
    return float(answer == reference)


class Wrapping:
    def __init__(self):
        self.reward = AsyncRewardWrapper(reward, max_workers=1)

    async def run(self, data, *, base_url, api_key, http_client):
        client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
        response = await client.chat.completions.create(model="default", messages=data["messages"])
        return await self.reward(response.choices[0].message.content, data["answer"])


class MyWorkflow:
    async def arun_episode(self, engine, data):
        return 1.0
"""


@pytest.fixture
def guide(agents):
    return agents(GUIDE)


@pytest.fixture
def task(task):
    """Rows with an answer, the one that the policy gives."""
    return lambda number=0: task(number, answer="4")


@pytest.mark.parametrize("name", ["MyAgent", "MyAgentWorkflow", "VersionedURL", "Leaving", "FromContext", "MySampler"])
def test_an_agent_of_the_guides_is_trained_as_it_is(play, guide, name):
    (record,) = play(f"{guide}:{name}", "inline")
    assert (record.outcome, record.reward) == (Outcome.SCORED, 1.0), record.detail


@pytest.mark.parametrize(
    ("name", "episodes"), [("MyAgent", 1), ("MySyncAgent", 2), ("MyDummyKeyAgent", 1), ("ByTurns", 4), ("Wrapping", 2)]
)
def test_it_is_so_in_a_process_of_its_own(play, guide, name, episodes):
    for record in play(f"{guide}:{name}", count=episodes):
        assert (record.outcome, record.reward) == (Outcome.SCORED, 1.0), record.detail


def test_workflow_kwargs_reach_a_worker_as_the_config_of_a_sampler(play, resolve, guide):
    (record,) = play(resolve(with_options(f"{guide}:MySampler", {"most": 3.0})))
    assert record.reward == 3.0, record.detail


def test_the_ready_made_agents_run_in_workers_with_a_reward_function(play, resolve, guide):
    workflow = resolve(Component("multi_turn", {"reward_fn": f"{guide}:reward"}))
    (record,) = play(workflow)
    assert record.reward == 1.0, record.detail
    (record,) = play("multi_turn")
    assert (
        "the task's scorer can be asked in the run's own process only: use rollout.agent.mode: inline" in record.detail
    )


def test_a_workflow_that_calls_the_engine_is_refused_in_a_worker(resolve, guide):
    with pytest.raises(ConfigError, match=r"MyWorkflow.* calls the engine itself .*mode: inline"):
        resolve(f"{guide}:MyWorkflow")


class MyWorkflow(RolloutWorkflow):
    """Of the guide to efficient workflows."""

    def __init__(self, reward_fn):
        # Wrap the reward function once during initialization
        self.async_reward_fn = AsyncRewardWrapper(reward_fn)

    async def arun_episode(self, engine, data):
        tokenizer = engine.tokenizer
        req = ModelRequest(input_ids=tokenizer.apply_chat_template(data["messages"], add_generation_prompt=True))
        resp = await engine.agenerate(req)
        prompt_str = tokenizer.decode(req.input_ids)
        completion_str = tokenizer.decode(resp.output_tokens, skip_special_tokens=True)
        # Await the wrapped reward function
        reward = await self.async_reward_fn(
            prompt_str,
            completion_str,
            **data,
        )
        return reward  # noqa: RET504 (as it is there)


def test_the_guides_token_level_workflow_awaits_its_reward_function(play, folder):
    class NoRegistry:
        """Nothing is looked up."""

    workflow = resolve_workflow(
        MyWorkflow, registry=NoRegistry(), base_dir=folder, options={"reward_fn": reward_calls.exact}
    )
    (record,) = play(workflow)
    assert (record.outcome, record.reward) == (Outcome.SCORED, 1.0), record.detail
