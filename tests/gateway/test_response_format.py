"""An untrained policy on the embedded engine answers by a schema and calls the tools that it must, as the SDK asks."""

import asyncio
import json
from enum import StrEnum

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

from agentrl_core.chat import Chat
from agentrl_core.config.sampling_sections import GatewayConfig, SamplingConfig
from agentrl_core.engines.embedded import EmbeddedEngine
from agentrl_core.gateway import Gateway
from agentrl_core.types import Record
from agentrl_testing.policy import toy_policy

USER = [{"role": "user", "content": "go"}]


class Side(StrEnum):
    BUY = "buy"
    SELL = "sell"


class Order(BaseModel):
    side: Side
    count: int = Field(ge=1, le=99)
    place: tuple[bool, bool] | None


def tool(name, parameters=None, **fields):
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


def arguments(**properties):
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


PICK = tool("pick", arguments(n={"enum": [1, 22]}))
AWKWARD = {
    "no parameters": None,
    "a reference": {
        **arguments(a={"$ref": "#/$defs/Side"}),
        "$defs": {"Side": {"enum": ["x", "y"]}},
    },
    "keywords that no grammar has": arguments(
        a={"type": "array", "items": {"enum": [1]}, "uniqueItems": True, "maxItems": 2}
    ),
    "overlapping alternatives": arguments(a={"oneOf": [{"enum": ["x", "y"]}, {"const": "x"}]}),
    "a format of its own": arguments(a={"type": "string", "format": "shoe-size", "maxLength": 3}),
    "quotes in a name": arguments(**{'a"b\\c': {"type": "boolean"}}),
    "no type": {"properties": {"a": {"const": None}}, "required": ["a"], "additionalProperties": False},
}


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    directory = tmp_path_factory.mktemp("toy")
    toy_policy(directory)
    engine = EmbeddedEngine(model_dir=directory)
    engine.start()
    yield Chat.from_directory(directory), engine
    engine.close()


@pytest.fixture
def embedded(policy, store):
    """Run `scenario(client)` against a gateway over the embedded engine."""
    chat, engine = policy
    gateway = Gateway(
        engine=engine,
        chat=chat,
        store=store,
        run_id="run",
        sampling=SamplingConfig(max_tokens=400),
        config=GatewayConfig(),
        seed=3,
    )
    gateway.start()

    def run(scenario):
        async def talking():
            record = Record(id="r", run_id="run", task_id="t", group_id="g", sample_index=0)
            session = await gateway.open_session(record, seed_key=(1, 0))
            client = AsyncOpenAI(
                base_url=session.base_url, api_key=session.api_key, http_client=gateway.http_client, max_retries=0
            )
            return await scenario(client)

        return asyncio.run(talking())

    yield run
    gateway.close()


def ask(client, **options):
    return client.chat.completions.create(**{"model": "default", "messages": USER, **options})


def test_parse_gives_an_object_of_the_schema(embedded, store):
    async def scenario(client):
        whole = await client.chat.completions.parse(model="default", messages=USER, response_format=Order, n=3)
        async with client.chat.completions.stream(model="default", messages=USER, response_format=Order) as stream:
            return whole, await stream.get_final_completion()

    whole, streamed = embedded(scenario)
    orders = [choice.message.parsed for choice in [*whole.choices, *streamed.choices]]
    assert all(isinstance(order, Order) for order in orders)
    assert len({order.model_dump_json() for order in orders}) > 1
    assert [one.sampling.grammar.kind for one in store.interactions] == ["json_schema"] * 4


def test_a_json_object_is_one(embedded):
    async def scenario(client):
        return await asyncio.gather(*[ask(client, response_format={"type": "json_object"}) for _ in range(4)])

    whole = [reply.choices[0] for reply in embedded(scenario)]
    finished = [choice.message.content for choice in whole if choice.finish_reason == "stop"]
    assert finished
    assert all(isinstance(json.loads(content), dict) for content in finished)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "pick"}}])
def test_a_tool_that_must_be_called_is(embedded, choice):
    tools = [PICK, tool("other", arguments(a={"type": "boolean"}))]
    reply = embedded(lambda client: ask(client, tools=tools, tool_choice=choice, parallel_tool_calls=False, n=4))
    for one in reply.choices:
        (call,) = one.message.tool_calls
        assert one.finish_reason == "tool_calls"
        assert one.message.content is None
        if choice == "required":
            assert call.function.name in ("pick", "other")
        else:
            assert call.function.name == "pick"
            assert json.loads(call.function.arguments)["n"] in (1, 22)


@pytest.mark.parametrize("parameters", AWKWARD.values(), ids=AWKWARD)
def test_tools_with_awkward_schemas_can_be_required(embedded, parameters):
    reply = embedded(lambda client: ask(client, tools=[tool("odd-tool.v2", parameters)], tool_choice="required"))
    (choice,) = reply.choices
    if choice.finish_reason == "length":  # any object goes
        assert parameters is None
        return
    for call in choice.message.tool_calls:
        assert call.function.name == "odd-tool.v2"
        assert json.loads(call.function.arguments).keys() >= set((parameters or {}).get("required", ()))


def test_tools_beside_a_schema_leave_the_choice(embedded):
    schema = {"type": "json_schema", "json_schema": {"name": "o", "schema": arguments(ok={"type": "boolean"})}}

    async def scenario(client):
        return await ask(client, tools=[PICK], response_format=schema, n=24, parallel_tool_calls=False)

    called, answered = 0, 0
    for choice in embedded(scenario).choices:
        if choice.message.tool_calls:
            called += 1
            assert json.loads(choice.message.tool_calls[0].function.arguments)["n"] in (1, 22)
            assert choice.message.content is None
        else:
            answered += 1
            assert json.loads(choice.message.content)["ok"] in (True, False)
    assert called
    assert answered


def test_a_schema_that_cannot_be_held_to_is_refused(embedded, store):
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}

    async def scenario(client):
        with pytest.raises(openai.BadRequestError, match="not") as caught:
            await ask(client, response_format={"type": "json_schema", "json_schema": {"name": "o", "schema": schema}})
        return caught.value

    assert embedded(scenario).status_code == 400
    assert store.interactions == []


def test_tools_that_may_not_be_called_leave_only_the_answer(embedded):
    schema = {"type": "json_schema", "json_schema": {"name": "o", "schema": arguments(ok={"type": "boolean"})}}
    reply = embedded(lambda client: ask(client, tools=[PICK], tool_choice="none", response_format=schema, n=4))
    assert all(json.loads(choice.message.content)["ok"] in (True, False) for choice in reply.choices)
