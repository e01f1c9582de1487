"""openai-agents talks to the gateway, by either of its models: every turn goes on from exact ids."""

import asyncio
from itertools import pairwise

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from agents.exceptions import ModelBehaviorError
from openai import AsyncOpenAI

from agentrl_core.api.reasoning import THINK
from agentrl_core.chat import Chat

ONE, TWO = '{"a":1,"b": 2}', '{"a": 3, "b": 4}'
MODELS = [OpenAIResponsesModel, OpenAIChatCompletionsModel]


@pytest.fixture(scope="module")
def chat(model_dir):
    return Chat.from_directory(model_dir, reasoning=THINK)


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(params=["whole", "streamed"])
def run_agent(request, gateway, session):
    """Run an agent as users do, with or without a stream, and return its result."""

    async def running(make_agent, model, value, options):
        async with AsyncOpenAI(
            base_url=session.base_url, api_key=session.api_key, http_client=gateway.http_client, max_retries=0
        ) as client:
            agent = make_agent(model("default", client))
            config = RunConfig(tracing_disabled=True)
            if request.param == "whole":
                return await Runner.run(agent, value, run_config=config, **options)
            result = Runner.run_streamed(agent, value, run_config=config, **options)
            async for _ in result.stream_events():
                pass
            return result

    return lambda make_agent, model, value, **options: asyncio.run(running(make_agent, model, value, options))


def assert_chain(engine, store):
    for earlier, later in pairwise(engine.log):
        known = earlier.request.prompt_ids + earlier.ids
        assert later.request.prompt_ids[: len(known)] == known
    assert [one.parent for one in store.interactions[1:]] == [one.id for one in store.interactions[:-1]]


def calculator(model):
    return Agent(name="calculator", instructions="Add.", tools=[add], model=model)


@pytest.mark.parametrize("model", MODELS)
def test_tool_turns_are_one_chain(run_agent, engine, store, call_text, model):
    engine.replies = [
        call_text("add", ONE),
        f"<think>\nhm\n</think>\n\nNow both.\n{call_text('add', TWO)}\n{call_text('add', ONE)}",
        f"<think>so</think>{call_text('add', TWO)}",
        "It is 7.",
    ]
    result = run_agent(calculator, model, "what is it?")
    assert result.final_output == "It is 7."
    assert [message["content"] for one in store.interactions[1:] for message in one.messages] == ["3", "7", "3", "7"]
    assert_chain(engine, store)


@pytest.mark.parametrize("model", MODELS)
def test_a_dialogue_over_several_runs_is_one_chain(gateway, session, engine, store, call_text, model):
    engine.replies = [call_text("add", ONE), "Three.", f"Well.\n{call_text('add', '{}')}", "", "Bye."]

    async def talking():
        async with AsyncOpenAI(
            base_url=session.base_url, api_key=session.api_key, http_client=gateway.http_client, max_retries=0
        ) as client:
            agent, items, config = calculator(model("default", client)), [], RunConfig(tracing_disabled=True)
            for question in "first", "second":
                value = [*items, {"role": "user", "content": question}]
                result = await Runner.run(agent, value, run_config=config)
                items = result.to_input_list()

    asyncio.run(talking())
    assert len(store.interactions) == 4
    assert_chain(engine, store)


@pytest.mark.parametrize("model", MODELS)
def test_a_handoff_to_other_instructions_is_a_new_root(run_agent, engine, store, chat, call_text, model):
    def triage(model):
        expert = Agent(name="Expert", instructions="You add.", tools=[add], model=model)
        return Agent(name="Triage", instructions="You route.", handoffs=[expert], model=model)

    engine.replies = [
        f"Over to you.\n{call_text('transfer_to_expert', '{}')}",
        call_text("add", ONE),
        "Three.",
    ]
    result = run_agent(triage, model, "what is 1 + 2?")
    assert (result.final_output, result.last_agent.name) == ("Three.", "Expert")
    ids = [one.id for one in store.interactions]
    assert [one.parent for one in store.interactions] == [None, None, ids[1]]  # other instructions, other tools
    assert "You add." in chat.decode(engine.log[1].request.prompt_ids)
    assert "Over to you." in chat.decode(engine.log[1].request.prompt_ids)
    known = engine.log[1].request.prompt_ids + engine.log[1].ids
    assert engine.log[2].request.prompt_ids[: len(known)] == known


def test_previous_response_ids_are_one_chain(run_agent, engine, store, call_text):
    engine.replies = [f"<think>hm</think>{call_text('add', ONE)}", call_text("add", "{}"), "Three."]
    result = run_agent(calculator, OpenAIResponsesModel, "what is it?", auto_previous_response_id=True)
    assert result.last_response_id == store.interactions[-1].id
    assert store.interactions[2].requested["previous_response_id"] == store.interactions[1].id
    assert_chain(engine, store)


def test_ids_of_responses_key_rewards(run_agent, engine, store, call_text):
    engine.replies = [call_text("add", ONE), "Three."]
    result = run_agent(calculator, OpenAIResponsesModel, "what is it?")
    assert [response.response_id for response in result.raw_responses] == [one.id for one in store.interactions]


def test_a_required_tool_and_one_call_at_a_time_are_understood(run_agent, engine, store, call_text):
    def agent(model):
        settings = ModelSettings(tool_choice="required", parallel_tool_calls=False, temperature=0.5, truncation="auto")
        return Agent(name="a", tools=[add], model=model, model_settings=settings)

    engine.replies = [call_text("add", ONE), "Three."]
    assert run_agent(agent, OpenAIResponsesModel, "what is it?").final_output == "Three."
    assert store.interactions[0].requested["tool_choice"] == "required"
    assert store.interactions[0].requested["temperature"] == 0.5


def test_a_malformed_call_is_what_the_agent_says(run_agent, engine, store):
    engine.replies = ["<tool_call>{oops</tool_call>"]
    result = run_agent(calculator, OpenAIResponsesModel, "what is it?")
    assert result.final_output == "<tool_call>{oops</tool_call>"
    assert store.interactions[0].tool_errors == 1


def test_a_reply_cut_by_its_length_is_no_answer(run_agent, engine):
    def agent(model):
        return Agent(name="a", model=model, model_settings=ModelSettings(max_tokens=4))

    engine.replies = ["a long story"]
    with pytest.raises(ModelBehaviorError, match="max_output_tokens"):
        run_agent(agent, OpenAIResponsesModel, "tell me")
