"""LangChain's ChatOpenAI speaks the Responses API with the gateway: every turn goes on from exact ids."""

import asyncio
from itertools import pairwise

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from agentrl_core.api.reasoning import THINK
from agentrl_core.chat import Chat

ONE, TWO = '{"a":1,"b": 2}', '{"a": 3, "b": 4}'


@pytest.fixture(scope="module")
def chat(model_dir):
    return Chat.from_directory(model_dir, reasoning=THINK)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture
def converse(gateway, session, engine):
    """Let a model call its tools until it calls none; its messages."""

    async def conversing(questions, *, stream, **options):
        model = ChatOpenAI(
            model="default",
            base_url=session.base_url,
            api_key=session.api_key,
            http_async_client=gateway.http_client,
            max_retries=0,
            use_responses_api=True,
            **options,
        ).bind_tools([add])
        messages = [SystemMessage("Add.")]
        for question in questions:
            messages.append(HumanMessage(question))
            while True:
                if stream:
                    chunks = [chunk async for chunk in model.astream(messages)]
                    reply = sum(chunks[1:], chunks[0])
                else:
                    reply = await model.ainvoke(messages)
                messages.append(reply)
                if not reply.tool_calls:
                    break
                messages += [
                    ToolMessage(str(add.invoke(call["args"])), tool_call_id=call["id"]) for call in reply.tool_calls
                ]
        return messages

    return lambda *questions, **options: asyncio.run(conversing(questions, **options))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("options", [{}, {"use_previous_response_id": True}, {"output_version": "v1"}])
def test_tool_turns_are_one_chain(converse, engine, store, call_text, stream, options):
    engine.replies = [
        f"<think>\nhm\n</think>\n\nFirst.\n{call_text('add', ONE)}",
        f"{call_text('add', ONE)}\n{call_text('add', TWO)}",
        "It is 7.",
        f"<think>again</think>{call_text('add', TWO)}",
        "Still 7.",
    ]
    messages = converse("what is it?", "sure?", stream=stream, **options)
    replies = [message for message in messages if isinstance(message, AIMessage)]
    assert [reply.text for reply in replies] == ["First.", "", "It is 7.", "", "Still 7."]
    assert [len(reply.tool_calls) for reply in replies] == [1, 2, 0, 1, 0]
    assert [message.content for message in messages if isinstance(message, ToolMessage)] == ["3", "3", "7", "7"]
    assert [reply.response_metadata["id"] for reply in replies] == [one.id for one in store.interactions]
    for earlier, later in pairwise(engine.log):
        known = earlier.request.prompt_ids + earlier.ids
        assert later.request.prompt_ids[: len(known)] == known
    assert [one.parent for one in store.interactions[1:]] == [one.id for one in store.interactions[:-1]]


def test_usage_is_told(converse, engine, store):
    engine.replies = ["<think>hm</think>ok"]
    usage = converse("hi", stream=False)[-1].usage_metadata
    assert usage["input_tokens"] == len(engine.log[0].request.prompt_ids)
    assert usage["output_tokens"] == len(engine.log[0].ids)
    assert usage["output_token_details"]["reasoning"] > 0
