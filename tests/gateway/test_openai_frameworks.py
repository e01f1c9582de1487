"""Agents of LangChain, pydantic-ai and smolagents over chat completions: each turn goes on from exact ids."""

import asyncio
from itertools import pairwise

import pytest
import smolagents
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from agentrl_core.types import FinishReason


class Sum(BaseModel):
    total: int


def check_one_chain(engine, store):
    """Check that each call went on from all that was sampled before it, token by token."""
    assert [one.parent for one in store.interactions] == [None, *(one.id for one in store.interactions[:-1])]
    for earlier, later in pairwise(engine.log):
        known = earlier.request.prompt_ids + earlier.ids
        assert later.request.prompt_ids[: len(known)] == known
    assert [one.ids for one in engine.log] == [one.output_ids for one in store.interactions]
    assert all(one.finish_reason is FinishReason.STOP for one in engine.log)


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@pytest.fixture
def langchain(gateway, session):
    return ChatOpenAI(
        base_url=f"{session.base_url}/v1",
        api_key=session.api_key,
        model="default",
        http_async_client=gateway.http_client,
        max_retries=0,
    )


@pytest.mark.parametrize("stream", [False, True])
def test_langchain_calls_tools_in_parallel_turn_after_turn(langchain, engine, store, call_text, stream):
    both = call_text("add", '{"a":1,"b":2}') + "\n" + call_text("add", '{"a": 3, "b": 4}')
    engine.replies = ["Let me é.\n" + both, call_text("add", '{"a":3,"b":7}'), "It is 10."]
    model = langchain.bind_tools([add])

    async def scenario():
        messages = [HumanMessage("1 + 2 + 3 + 4?")]
        for _ in range(3):
            if stream:
                reply = None
                async for chunk in model.astream(messages):
                    reply = chunk if reply is None else reply + chunk
            else:
                reply = await model.ainvoke(messages)
            messages.append(reply)
            messages += [ToolMessage(str(add.invoke(one["args"])), tool_call_id=one["id"]) for one in reply.tool_calls]
        return messages

    messages = asyncio.run(scenario())
    assert [message.content for message in messages if message.type == "tool"] == ["3", "7", "10"]
    assert messages[-1].content == "It is 10."
    check_one_chain(engine, store)


@pytest.mark.parametrize("method", ["json_schema", "json_mode", "function_calling"])
def test_langchain_gets_structured_output(langchain, engine, store, call_text, method):
    engine.replies = [call_text("Sum", '{"total": 3}') if method == "function_calling" else '{"total": 3}']
    asked = langchain.with_structured_output(Sum, method=method)
    assert asyncio.run(asked.ainvoke("json: 1 + 2?")) == Sum(total=3)
    kinds = {"json_schema": "json_schema", "json_mode": "json_object", "function_calling": "lark"}
    assert store.interactions[0].sampling.grammar.kind == kinds[method]


@pytest.fixture
def pydantic_model(gateway, session):
    client = AsyncOpenAI(
        base_url=f"{session.base_url}/v1", api_key=session.api_key, http_client=gateway.http_client, max_retries=0
    )
    return OpenAIChatModel("default", provider=OpenAIProvider(openai_client=client))


@pytest.mark.parametrize("stream", [False, True])
def test_pydantic_ai_loops_over_tools_and_goes_on_with_its_history(pydantic_model, engine, store, call_text, stream):
    both = call_text("add", '{"a":1,"b":2}') + call_text("add", '{"a": 3, "b": 4}')
    engine.replies = [both, "Ten.", "You asked for a sum."]
    agent = Agent(pydantic_model, instructions="Be brief.")

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    async def run(prompt, history=None):
        if not stream:
            result = await agent.run(prompt, message_history=history)
            return result.output, result.all_messages()
        async with agent.run_stream(prompt, message_history=history) as result:
            return await result.get_output(), result.all_messages()

    async def scenario():
        first, history = await run("1 + 2 + 3 + 4?")
        second, _ = await run("What did I ask?", history)
        return first, second

    assert asyncio.run(scenario()) == ("Ten.", "You asked for a sum.")
    assert [message["content"] for message in store.interactions[1].messages] == ["3", "7"]
    check_one_chain(engine, store)


def test_pydantic_ai_calls_its_output_tool_because_it_must(pydantic_model, engine, store, call_text):
    engine.replies = [call_text("final_result", '{"total": 3}')]
    assert asyncio.run(Agent(pydantic_model, output_type=Sum).run("1 + 2?")).output == Sum(total=3)
    assert store.interactions[0].sampling.grammar.kind == "lark"


def test_pydantic_ai_asks_for_a_schema_beside_tools(pydantic_model, engine, store, call_text):
    engine.replies = [call_text("look", "{}"), '{"total": 3}']
    agent = Agent(pydantic_model, output_type=NativeOutput(Sum), tools=[look])
    assert asyncio.run(agent.run("1 + 2?")).output == Sum(total=3)
    assert [one.sampling.grammar.kind for one in store.interactions] == ["lark", "lark"]
    check_one_chain(engine, store)


def look() -> str:
    """Look."""
    return "3"


class Double(smolagents.Tool):
    name = "double"
    description = "Double a number."
    inputs = {"number": {"type": "integer", "description": "The number."}}  # noqa: RUF012 - its own interface
    output_type = "integer"

    def forward(self, number: int) -> int:
        return 2 * number


@pytest.fixture
def smol_model(session):
    return smolagents.OpenAIServerModel("default", api_base=f"{session.base_url}/v1", api_key=session.api_key)


def test_smolagents_tool_calling_agent(smol_model, engine, store, call_text):
    engine.replies = [call_text("double", '{"number": 4}'), call_text("final_answer", '{"answer":"8"}')]
    agent = smolagents.ToolCallingAgent(tools=[Double()], model=smol_model, verbosity_level=0)
    assert agent.run("Twice 4?") == "8"
    assert [one.output["tool_calls"][0]["function"]["name"] for one in store.interactions] == ["double", "final_answer"]
    assert [one.sampling.grammar.kind for one in store.interactions] == ["lark", "lark"]  # it requires a call
    assert [one.ids for one in engine.log] == [one.output_ids for one in store.interactions]


@pytest.mark.parametrize("stream", [False, True])
def test_smolagents_code_agent(smol_model, engine, store, stream):
    engine.replies = [
        "Thought: double it.\n<code>\nx = double(4)\nprint(x)\n</code>",
        "Thought: done.\n<code>\nfinal_answer(x)\n</code>",
    ]
    agent = smolagents.CodeAgent(tools=[Double()], model=smol_model, verbosity_level=0, stream_outputs=stream)
    assert agent.run("Twice 4?") == 8
    assert [one.ids for one in engine.log] == [one.output_ids for one in store.interactions]
    # It writes text of its own into the model's turns, so each call is a conversation of its own.
    assert [one.parent for one in store.interactions] == [None, None]
