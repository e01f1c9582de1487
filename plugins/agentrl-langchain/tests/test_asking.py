import asyncio
import json
from typing import Literal, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, field_validator

from agentrl_core.types import Outcome
from agentrl_langchain.asking import body_of, parsed, wanted_format


class Answer(BaseModel):
    """The answer."""

    value: int
    unit: Literal["m", "s"] = "m"

    @field_validator("value")
    @classmethod
    def _positive(cls, value):
        if value < 0:
            raise ValueError("too small")
        return value


class Tree(BaseModel):
    """A tree."""

    leaves: list["Tree"]
    sizes: dict[str, int] = {}


class Typed(TypedDict):
    """The answer."""

    value: int


OPEN = {
    "title": "Answer", "description": "The answer.", "type": "object", "properties": {"value": {"type": "integer"}},
    "required": ["value"],
}  # fmt: skip


@pytest.fixture
def heard(world, ask):
    """What a runnable gives inside an episode, whole or piece by piece, and the episode."""

    def run(runnable, *, way="ainvoke"):
        found = []

        async def node(state):
            if way == "ainvoke":
                found.append(await runnable.ainvoke(state["messages"]))
            elif way == "invoke":
                found.append(await asyncio.to_thread(runnable.invoke, state["messages"]))
            else:
                found.extend([chunk async for chunk in runnable.astream(state["messages"])])

        [episode] = world.play(RunnableLambda(node), ask("how far?"))
        return (found or [None])[-1], episode

    return run


def schema_asked(world):
    """The JSON schema that the engine was to hold the reply to."""
    grammar = world.engine.log[0].request.sampling.grammar
    assert grammar.kind in {"json_schema", "lark"}
    text = grammar.value if grammar.kind == "json_schema" else grammar.value.partition("%json ")[2].splitlines()[0]
    return {key: value for key, value in json.loads(text).items() if key != "x-guidance"}


@pytest.mark.parametrize("way", ["ainvoke", "invoke", "astream"])
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_a_pydantic_class_is_enforced_and_comes_back_as_its_object(world, model, call, heard, method, way):
    world.says('{"value": 3, "unit": "s"}' if method == "json_schema" else call("Answer", value=3, unit="s"))
    answer, episode = heard(model.with_structured_output(Answer, method=method), way=way)
    assert answer == Answer(value=3, unit="s"), episode.record.detail
    asked = schema_asked(world)
    assert asked["properties"]["value"]["type"] == "integer"
    if method == "json_schema":
        assert (asked["additionalProperties"], asked["required"]) == (False, ["value", "unit"])
    else:
        assert "Answer" in world.engine.log[0].request.sampling.grammar.value


@pytest.mark.parametrize("way", ["ainvoke", "invoke", "astream"])
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize("schema", [OPEN, Typed], ids=["dict", "TypedDict"])
def test_a_schema_is_enforced_and_comes_back_as_a_dict(world, model, call, heard, schema, method, way):
    world.says(
        '{"value": 3}' if method == "json_schema" else call(schema["title"] if schema is OPEN else "Typed", value=3)
    )
    answer, _ = heard(model.with_structured_output(schema, method=method), way=way)
    assert answer == {"value": 3}
    assert schema_asked(world)["properties"]["value"]["type"] == "integer"


@pytest.mark.parametrize("setting", ["method", "model_kwargs"])
def test_any_json_may_be_asked_for(world, model, heard, setting):
    world.says('{"value": 3}')
    if setting == "method":
        asking = model.with_structured_output(None, method="json_mode")
    else:
        asking = ChatOpenAI(model="gpt-5", api_key="k", model_kwargs={"response_format": {"type": "json_object"}})
    heard(asking)
    assert schema_asked(world) == {"type": "object"}


@pytest.mark.parametrize("said", ['{"value": -1, "unit": "m"}', '{"value": 1', "[]", ""])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_reply_that_the_class_does_not_accept_is_the_parsers_to_refuse(world, heard, said, streaming):
    world.says(said)
    model = ChatOpenAI(model="gpt-5", api_key="k", streaming=streaming)
    output, _ = heard(model.with_structured_output(Answer, method="json_schema", include_raw=True))
    assert output["raw"].content == said
    assert output["parsed"] is None
    assert ("too small" in str(output["parsing_error"])) == ("-1" in said)


def test_a_model_may_call_a_tool_instead_of_answering(world, model, call, heard):
    world.says(call("look"))
    look = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
    output, _ = heard(model.with_structured_output(Answer, method="json_schema", tools=[look], include_raw=True))
    assert [item["name"] for item in output["raw"].tool_calls] == ["look"]
    assert (output["parsed"], output["parsing_error"]) == (None, None)


@pytest.mark.parametrize("strategy", ["auto", "provider", "tool"])
@pytest.mark.parametrize("with_tools", [False, True])
def test_an_agent_ends_with_its_structured_response(world, model, call, ask, strategy, with_tools):
    def measure() -> str:
        """Measure."""
        return "3 s"

    answer = {"value": 3, "unit": "s"}
    last = call("Answer", **answer) if strategy == "tool" else json.dumps(answer)
    world.says(*([call("measure")] if with_tools else []), last)
    wanted = {"auto": Answer, "provider": ProviderStrategy(Answer, strict=True), "tool": ToolStrategy(Answer)}[strategy]
    found = []
    agent = create_agent(model, tools=[measure] if with_tools else [], response_format=wanted)
    [episode] = world.play(agent | RunnableLambda(found.append), ask("how far?"))
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    assert found[0]["structured_response"] == Answer(value=3, unit="s")
    assert [entry.request.sampling.grammar is not None for entry in world.engine.log] == [True] * (1 + with_tools)
    assert '"value"' in world.engine.log[0].request.sampling.grammar.value


def test_a_class_is_asked_for_as_openai_asks_for_it(model):
    wanted = body_of(model, {}, [HumanMessage("?")], {"response_format": Tree})["response_format"]
    assert (wanted["type"], wanted["json_schema"]["name"], wanted["json_schema"]["strict"]) == (
        "json_schema",
        "Tree",
        True,
    )
    tree = wanted["json_schema"]["schema"]["$defs"]["Tree"]
    assert (tree["additionalProperties"], tree["required"]) == (False, ["leaves", "sizes"])
    assert tree["properties"]["leaves"]["items"] == {"$ref": "#/$defs/Tree"}
    assert tree["properties"]["sizes"]["additionalProperties"] == {"type": "integer"}


@pytest.mark.parametrize(
    "asked",
    [
        {"response_format": OPEN},
        {"output_config": {"format": {"type": "json_schema", "schema": OPEN}, "effort": "high"}},
        {"format": OPEN},
        {"response_mime_type": "application/json", "response_json_schema": OPEN},
        {"response_mime_type": "application/json", "response_schema": OPEN},
    ],
)
def test_formats_in_other_providers_words_are_enforced(world, heard, asked):
    world.says('{"value": 3}')
    heard(FakeListChatModel(responses=[]).bind(**asked))
    assert schema_asked(world) == OPEN


@pytest.mark.parametrize("asked", [{"format": "json"}, {"response_mime_type": "application/json"}])
def test_any_json_in_other_providers_words(model, asked):
    assert body_of(model, {}, [], asked)["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize("asked", [{}, {"format": ""}, {"output_config": {"effort": "low"}}, {"response_format": None}])
def test_a_free_reply_has_no_format(model, asked):
    assert wanted_format(model, asked) is None
    assert "response_format" not in body_of(model, {}, [], asked)


NAMED = {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("any", {"tool_choice": "required"}),
        (True, {"tool_choice": "required"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "tool", "name": "add"}, {"tool_choice": NAMED}),
        ({"type": "auto", "disable_parallel_tool_use": True}, {"tool_choice": "auto", "parallel_tool_calls": False}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ("add", {"tool_choice": NAMED}),
        (NAMED, {"tool_choice": NAMED}),
        ("none", {"tool_choice": "none"}),
        (None, {}),
        (False, {}),
    ],
)
def test_the_tool_to_call_is_named_as_openai_names_it(model, said, expected):
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    body = body_of(model, {}, [], {"tools": [tool], "tool_choice": said})
    assert {name: body[name] for name in ("tool_choice", "parallel_tool_calls") if name in body} == expected


def test_only_a_pydantic_class_has_its_object_beside_the_reply():
    assert parsed('{"value": 1}', Answer) == {"parsed": Answer(value=1)}
    assert parsed('{"value": 1}', Typed) == parsed('{"value": 1}', OPEN) == parsed("", Answer) == {}


def test_likeliest_tokens_and_several_replies_come_as_the_model_asks(world, ask):
    world.says("ab")
    model = ChatOpenAI(model="gpt-5", api_key="k", logprobs=True, top_logprobs=2, n=3)
    found = []

    async def node(_):
        found.append(await model.agenerate([[HumanMessage("hello")]]))

    [episode] = world.play(RunnableLambda(node), ask("hello"))
    replies = [generation.message for generation in found[0].generations[0]]
    assert [reply.id for reply in replies] == [item.id for item in episode.interactions]
    assert [reply.response_metadata["id"] for reply in replies] == [reply.id for reply in replies]
    assert len(replies) == len(world.engine.log) == 3
    assert [len(item["top_logprobs"]) for item in replies[2].response_metadata["logprobs"]["content"]] == [2, 2, 2]


def test_a_stream_of_several_replies_is_refused(world, model, heard):
    world.says("never said")
    _, episode = heard(model.bind(n=2), way="astream")
    assert "a stream has one reply" in episode.record.detail
    assert world.engine.log == []


def test_streamed_log_probabilities_are_those_of_all_tokens(world, model, heard):
    world.says("abc")
    pieces = []

    async def node(state):
        pieces.extend([chunk async for chunk in model.astream(state, logprobs=True)])

    _, episode = heard(RunnableLambda(node))
    whole = sum(pieces[1:], pieces[0])
    logprobs = [item["logprob"] for item in whole.response_metadata["logprobs"]["content"]]
    assert logprobs == list(episode.interactions[0].logprobs)
