"""What a LangChain agent's episode is trained on is what was sampled, token by token, in one row."""

import asyncio

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool

TEXTS = {
    "plain": ("Let me see.", '{"a": 1, "b": 2}'),
    "no content": ("", '{"a": 1, "b": 2}'),
    "blanks in the arguments": ("", '{ "b":2 ,\n "a" : 1}'),
    "escapes": ("Größe 😀", '{"a": 1, "b": 2, "note": "\\u00e9\\ud83d\\ude00\\/"}'),
    "characters that end lines": ("\u2028x\x85y", '{"a": 1, "b": 2, "note": "\u2028"}'),
}


@tool
def add(a: int, b: int, note: str = "") -> str:
    """Add two numbers."""
    return f"{a + b} {note}"


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_a_dialogue_with_tools_is_one_chain_of_what_was_sampled(world, model, ask, text, streaming):
    content, arguments = TEXTS[text]
    written = f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call>'
    world.says(content + written + written, written, "Done.")
    model.streaming = streaming
    agent = create_agent(model, tools=[add], name="adder", system_prompt="You add.")
    [episode] = world.play(agent, ask("1 + 2?"))
    interactions = episode.interactions
    assert [item.parent for item in interactions] == [None, interactions[0].id, interactions[1].id]
    assert [message["role"] for message in interactions[1].messages] == ["tool", "tool"]
    log = world.engine.log
    assert [item.output_ids for item in interactions] == [entry.ids for entry in log]
    assert [item.logprobs for item in interactions] == [entry.logprobs for entry in log]
    assert episode.full_ids(interactions[-1]) == log[-1].request.prompt_ids + log[-1].ids


def test_the_store_has_the_same(world, model, ask, call):
    world.says(call("add", a=1, b=2), "Done.")
    [episode] = world.play(create_agent(model, tools=[add]), ask("1 + 2?"))
    found = asyncio.run(world.store.episode(episode.record.id))
    assert found.full_ids(found.interactions[-1]) == episode.full_ids(episode.interactions[-1])
