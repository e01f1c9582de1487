import json
import sys

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, NativeOutput, RunContext
from pydantic_ai.agent import WrapperAgent

from agentrl_core.errors import ConfigError
from agentrl_core.types import Outcome
from agentrl_testing.adapters import AdapterSuite


class TestAgent(AdapterSuite):
    @pytest.fixture
    def agent_factory(self, model):
        return lambda: Agent(model, instructions="Be brief.", tools=[look])


class TestWrappedAgent(AdapterSuite):
    @pytest.fixture
    def agent_factory(self, model):
        return lambda: WrapperAgent(Agent(model))


class TestAgentWithoutModel(AdapterSuite):
    @pytest.fixture
    def agent_factory(self):
        return lambda: Agent(instructions="Be brief.")


class Sum(BaseModel):
    """A sum."""

    total: int


def look() -> str:
    """Look."""
    return "3"


def said(episode):
    return [interaction.output["content"] for interaction in episode.interactions]


def test_an_agent_uses_its_tools_until_the_policy_answers(world, agent, ask, call):
    world.says("Let me see. " + call("add", a=1, b=2) + call("add", a=3, b=4), "<answer>3 and 7</answer>")
    [episode] = world.play(agent, ask("1 + 2, 3 + 4?"), score=0.75)
    assert (episode.record.reward, world.requests[0].answer) == (0.75, "3 and 7")
    assert [message["content"] for message in world.requests[0].messages] == [
        "You add.", "1 + 2, 3 + 4?", "Let me see.", "3", "7", "<answer>3 and 7</answer>",
    ]  # fmt: skip
    first, second = episode.interactions
    assert [tool["function"]["name"] for tool in first.tools] == ["add"]
    assert (first.model, second.parent) == ("gpt-5-mini", first.id)


def test_what_goes_before_the_last_user_message_is_history(world, agent, call):
    world.says("unused", "unused", "It was 3.")
    tool_call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1,"b": 2}'}}
    row = [
        {"role": "system", "content": "In words."},
        {"role": "user", "content": [{"type": "text", "text": "1 + 2?"}]},
        {"role": "assistant", "content": "", "tool_calls": [tool_call]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "assistant", "content": "Three."},
        {"role": "user", "content": "What was it?"},
    ]
    [episode] = world.play(agent, {"messages": row})
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    [interaction] = episode.interactions
    system, *others = interaction.messages
    assert system["content"].split("\n\n") == ["You add.", "In words."]
    assert [message.get("content") or "" for message in others] == ["1 + 2?", "", "3", "Three.", "What was it?"]
    assert json.loads(others[1]["tool_calls"][0]["function"]["arguments"]) == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "robot", "content": "x"}, "unknown role 'robot'"),
        ({"role": "tool", "tool_call_id": "c9", "content": "x"}, "answers the call 'c9', but no message"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "a part of type 'input_audio'"),
        (
            {"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "http://x/a.png"}}]},
            "must be text",
        ),
    ],
)
def test_a_row_that_an_agent_cannot_be_told_is_a_data_error(world, agent, message, expected):
    [episode] = world.play(agent, {"messages": [message, {"role": "user", "content": "?"}]})
    assert episode.record.reason == "DataError"
    assert expected in episode.record.detail


def test_a_query_or_a_named_key_is_the_prompt(world, agent):
    world.says("hi")
    [by_query] = world.play(agent, {"query": "hello"})
    from agentrl_pydantic_ai.workflow import PydanticAIWorkflow

    [by_key] = world.play(PydanticAIWorkflow(agent, input_key="question"), {"question": "well?"})
    asked = [episode.interactions[0].messages[-1]["content"] for episode in (by_query, by_key)]
    assert asked == ["hello", "well?"]


@pytest.mark.parametrize("way", ["tool", "native"])
def test_an_output_that_is_no_text_is_what_the_scorer_judges(world, model, ask, call, way):
    world.says(call("final_result", total=3) if way == "tool" else '{"total": 3}')
    [episode] = world.play(Agent(model, output_type=Sum if way == "tool" else NativeOutput(Sum)), ask("1 + 2?"))
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    assert world.requests[0].answer == '{"total":3}'
    assert world.engine.log[0].request.sampling.grammar is not None


def test_the_agents_own_output_retries_go_on(world, model, ask, call):
    agent = Agent(model, output_type=Sum, retries=2)

    @agent.output_validator
    def positive(output: Sum) -> Sum:
        if output.total < 0:
            raise ModelRetry("too small")
        return output

    world.says(call("final_result", total=-1), call("final_result", total=4))
    [episode] = world.play(agent, ask("2 + 2?"))
    assert world.requests[0].answer == '{"total":4}'
    assert "too small" in str(episode.interactions[1].messages[-1]["content"])


@pytest.mark.parametrize("give_up", ["score", "fail"])
@pytest.mark.parametrize("how", ["limit", "retries"])
def test_an_episode_in_which_the_policy_gives_up(world, agent, model, ask, call, tmp_path, give_up, how):
    from agentrl_pydantic_ai.workflow import PydanticAIWorkflow

    world.says(*[call("add", a=1, b="x" if how == "retries" else 2)] * 9)
    limits = {"request_limit": 2} if how == "limit" else None
    [episode] = world.play(PydanticAIWorkflow(agent, usage_limits=limits, give_up=give_up), ask("1 + 2?"), score=0.0)
    expected = {"limit": "UsageLimitExceeded", "retries": "UnexpectedModelBehavior"}[how]
    assert len(episode.interactions) == 2
    if give_up == "score":
        assert (episode.record.outcome, episode.record.reward, world.requests[0].answer) == (Outcome.SCORED, 0.0, "")
    else:
        assert (episode.record.outcome, episode.record.reason) == (Outcome.FAILED, expected)


AGENT_FILE = """
from dataclasses import dataclass
from pydantic_ai import Agent, RunContext
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

@dataclass
class City:
    name: str

def city_of(row):
    return City(row["city"])

async def later(row):
    return City(row["city"])

def build_agent():
    model = OpenAIChatModel("gpt-5", provider=OpenAIProvider(api_key="k"))
    agent = Agent(model, deps_type=City)

    @agent.instructions
    def where(ctx: RunContext[City]) -> str:
        return f"You are in {ctx.deps.name}."

    return agent

agent = build_agent()
"""


@pytest.mark.parametrize("deps", ["my_agent:city_of", "my_agent.later", "my_agent.py:city_of"])
@pytest.mark.parametrize("name", ["build_agent", "agent"])
def test_dependencies_are_made_of_each_row(world, ask, tmp_path, monkeypatch, name, deps):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_agent", raising=False)
    (tmp_path / "my_agent.py").write_text(AGENT_FILE)
    world.says("hi")
    episodes = world.play(f"my_agent.py:{name}", *[{**ask("?"), "city": city} for city in ("Oslo", "Rome")], deps=deps)
    assert [episode.interactions[0].messages[0]["content"] for episode in episodes] == [
        "You are in Oslo.", "You are in Rome.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "the agent needs deps of type City; fix: name a function"),
        ({"deps": "my_agent:nobody"}, "has no 'nobody'"),
        ({"deps": "my_agent:__doc__"}, "workflow.deps: 'my_agent:__doc__' is of type NoneType"),
        ({"deps": "my_agent:city_of", "usage_limits": {"requests": 1}}, "workflow.usage_limits: .*'requests'"),
        ({"deps": "my_agent:city_of", "give_up": "sulk"}, "give_up.* must be score or fail, found 'sulk'"),
        ({"dept": "my_agent:city_of"}, "did you mean .*deps"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(world, tmp_path, monkeypatch, options, expected):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_agent", raising=False)
    (tmp_path / "my_agent.py").write_text(AGENT_FILE)
    with pytest.raises(Exception, match=expected) as info:
        world.resolve("my_agent.py:agent", **options)
    assert isinstance(info.value, ConfigError) or "nobody" in str(info.value)


def test_an_agent_that_raises_fails_with_its_own_error(world, model, ask, call):
    class TooWarmError(Exception):
        pass

    agent = Agent(model)

    @agent.tool
    def measure(ctx: RunContext[None]) -> str:
        """Measure."""
        raise TooWarmError("38 degrees")

    world.says(call("measure"))
    [episode] = world.play(agent, ask("How warm?"))
    assert (episode.record.outcome, episode.record.reason) == (Outcome.FAILED, "TooWarmError")
    assert "38 degrees" in episode.record.detail
    assert len(episode.interactions) == 1


def test_the_ids_of_the_turns_are_those_of_the_interactions(world, agent, ask, call):
    from agentrl_pydantic_ai.routing import route_to_policy

    async def run(data):
        with route_to_policy():
            result = await agent.run(data["messages"][-1]["content"])
        replies = [message for message in result.all_messages() if message.kind == "response"]
        return {reply.provider_response_id: 0.5 for reply in replies}

    world.says(call("add", a=1, b=2), "3")
    [episode] = world.play(run, ask("1 + 2?"))
    assert episode.record.rewards == {interaction.id: 0.5 for interaction in episode.interactions}
    assert len(episode.record.rewards) == 2
