import asyncio

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI

from agentrl_core.types import Outcome


@pytest.fixture
def reply_of(world, ask):
    """What `model.ainvoke(…)` gives inside an episode, and the episode."""

    def run(model, *, way="ainvoke", is_eval=False, **arguments):
        replies = []

        async def node(state):
            replies.append(await getattr(model, way)(state["messages"], **arguments))

        [episode] = world.play(RunnableLambda(node), ask("hello"), is_eval=is_eval)
        return (replies or [None])[0], episode

    return run


def test_a_reply_carries_the_ids_and_usage_of_its_interaction(world, model, reply_of):
    world.says("hi there")
    reply, episode = reply_of(model)
    [interaction] = episode.interactions
    assert reply.content == "hi there"
    assert reply.id == reply.response_metadata["id"] == interaction.id
    assert reply.response_metadata["model_name"] == interaction.model == "gpt-5-mini"
    assert reply.usage_metadata == {
        "input_tokens": len(interaction.prompt_ids),
        "output_tokens": len(interaction.output_ids),
        "total_tokens": len(interaction.prompt_ids) + len(interaction.output_ids),
        "input_token_details": {"cache_read": 0},
    }


@pytest.mark.parametrize("given", ["built", "bound", "called"])
def test_the_settings_of_the_model_reach_the_policy(world, reply_of, given):
    world.says("abcdefghij")
    settings = {"temperature": 0.25, "max_tokens": 5, "top_p": 0.5, "stop": ["e"]}
    built = ChatOpenAI(model="gpt-4o", api_key="k", **(settings if given == "built" else {}))
    model = built.bind(**settings) if given == "bound" else built
    reply, episode = reply_of(model, is_eval=True, **(settings if given == "called" else {}))
    [interaction] = episode.interactions
    assert interaction.model == "gpt-4o"
    sampling = interaction.sampling
    assert (sampling.temperature, sampling.max_tokens, sampling.top_p, sampling.stop) == (0.25, 5, 0.5, ("e",))
    assert reply.content == "abcd"
    assert reply.response_metadata["finish_reason"] == "stop"


def test_a_model_that_wants_nothing_gets_the_runs_own_sampling(world, model, reply_of):
    world.says("a")
    _, episode = reply_of(model)
    assert episode.interactions[0].sampling.temperature == 1.0
    assert episode.interactions[0].sampling.max_tokens == 500
    assert not episode.interactions[0].requested


def test_a_seed_is_recorded_as_for_any_client(world, model, reply_of):
    world.says("a")
    _, episode = reply_of(model, seed=5)
    assert episode.interactions[0].requested == {"seed": 5}


@pytest.mark.parametrize("streaming", [False, True])
def test_tokens_are_reported_where_they_are_asked_for(world, reply_of, streaming):
    tokens = []

    class Listener(BaseCallbackHandler):
        def on_llm_new_token(self, token, **kwargs):
            tokens.append(token)

    world.says("hello you")
    model = ChatOpenAI(model="gpt-4o", api_key="k", streaming=streaming, callbacks=[Listener()])
    reply, episode = reply_of(model)
    assert "".join(tokens) == ("hello you" if streaming else "")
    assert reply.content == "hello you"
    assert reply.response_metadata["id"] == episode.interactions[0].id


def test_log_probabilities_come_with_the_reply_that_asks_for_them(world, model, reply_of):
    world.says("ab")
    reply, episode = reply_of(model, logprobs=True)
    assert [item["logprob"] for item in reply.response_metadata["logprobs"]["content"]] == list(
        episode.interactions[0].logprobs
    )


@pytest.mark.parametrize("streaming", [False, True])
def test_a_call_is_made_once_whatever_the_model_would_retry(world, reply_of, streaming):
    tried = []
    world.mind = lambda prompt: tried.append(prompt) or ValueError("out of memory")
    _, episode = reply_of(ChatOpenAI(model="gpt-4o", api_key="k", max_retries=5, streaming=streaming))
    assert len(tried) == 1
    assert (episode.record.outcome, episode.record.reason) == (Outcome.FAILED, "ModelAPIError")


def test_an_agent_that_retries_itself_may(world, model, reply_of):
    answers = iter([ValueError("once"), "second"])
    world.mind = lambda prompt: next(answers)
    reply, episode = reply_of(model.with_retry(wait_exponential_jitter=False, stop_after_attempt=2))
    assert (reply.content, len(episode.interactions)) == ("second", 1)


def test_a_fallback_is_the_same_policy(world, model, reply_of):
    answers = iter([ValueError("once"), "second"])
    world.mind = lambda prompt: next(answers)
    reply, episode = reply_of(model.with_fallbacks([ChatOpenAI(model="gpt-4o", api_key="k")]))
    assert (reply.content, [item.model for item in episode.interactions]) == ("second", ["gpt-4o"])


@pytest.mark.parametrize("way", ["ainvoke", "astream"])
def test_a_prompt_that_is_too_long_is_langchains_own_error(world, model, ask, way):
    world.engine.context_length = 3
    caught = []

    async def node(state):
        try:
            if way == "ainvoke":
                await model.ainvoke(state["messages"])
            else:
                [chunk async for chunk in model.astream(state["messages"])]
        except Exception as error:
            caught.append(error)
            raise

    [episode] = world.play(RunnableLambda(node), ask("hello"))
    assert episode.record.reason == type(caught[0]).__name__ == "ContextOverflowError"
    assert "maximum context length is 3 tokens" in str(caught[0])


def test_half_a_surrogate_pair_does_not_end_the_episode(world, model):
    world.says("ok")

    async def node(state):
        await model.ainvoke([("user", "\ud83d")])

    [episode] = world.play(RunnableLambda(node), {"messages": []})
    assert episode.record.outcome is Outcome.SCORED
    assert episode.interactions[0].messages[0]["content"] == "?"


def test_tools_in_other_providers_shapes_are_offered_as_functions(world, model, reply_of):
    world.says("ok")
    anthropic = {"name": "add", "description": "Add.", "input_schema": {"type": "object", "properties": {"a": {}}}}
    _, episode = reply_of(model.bind(tools=[anthropic]))
    assert episode.interactions[0].tools[0]["function"]["parameters"] == anthropic["input_schema"]


def test_a_stream_that_is_left_early_stops_the_generation(world, model, ask):
    async def node(state):
        async for _ in model.astream(state["messages"]):
            break
        await asyncio.wait_for(model.ainvoke([("user", "go on")]), 10)

    world.says("a rather long reply")
    [episode] = world.play(RunnableLambda(node), ask("hello"))
    assert [item.messages[-1]["content"] for item in episode.interactions] == ["go on"]
