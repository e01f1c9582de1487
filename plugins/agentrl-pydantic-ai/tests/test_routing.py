import asyncio
import threading

import pytest
from opentelemetry import context as telemetry
from opentelemetry import trace
from pydantic_ai import Agent, direct
from pydantic_ai.messages import ModelRequest
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.instrumented import InstrumentationSettings, InstrumentedModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from agentrl_core.errors import PluginError
from agentrl_core.types import Outcome
from agentrl_pydantic_ai import routing
from agentrl_pydantic_ai.policy import PolicyModel

NOWHERE = "http://127.0.0.1:9/v1"
OPENAI = OpenAIProvider(base_url=NOWHERE, api_key="k")
MODELS = {
    "anthropic": lambda: AnthropicModel(
        "claude-sonnet-4-5", provider=AnthropicProvider(api_key="k", base_url="http://127.0.0.1:9")
    ),
    "responses": lambda: OpenAIResponsesModel("gpt-5", provider=OPENAI),
    "fallback": lambda: FallbackModel(OpenAIChatModel("gpt-5", provider=OPENAI), TestModel()),
    "instrumented": lambda: InstrumentedModel(OpenAIChatModel("gpt-5", provider=OPENAI)),
    "test": TestModel,
}


@pytest.mark.parametrize("kind", MODELS)
def test_every_kind_of_model_answers_with_the_policy(world, ask, call, kind):
    world.says(call("add", a=1, b=2), "3")
    agent = Agent(MODELS[kind](), instructions="You add.")

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    [episode] = world.play(agent, ask("1 + 2?"))
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    assert [len(interaction.messages) for interaction in episode.interactions] == [2, 1]
    assert episode.interactions[1].parent == episode.interactions[0].id


def test_outside_of_episodes_models_are_what_they_were(world, ask):
    routing.install()
    world.says("the policy")

    def answers(messages, info):
        raise AssertionError("asked in an episode")

    def provider(messages, info):
        from pydantic_ai.messages import ModelResponse, TextPart

        return ModelResponse(parts=[TextPart("the provider")])

    [episode] = world.play(Agent(FunctionModel(answers)), ask("?"))
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    assert asyncio.run(Agent(FunctionModel(provider)).run("?")).output == "the provider"
    with pytest.raises(LookupError, match="outside an episode"), routing.route_to_policy():
        pass


@pytest.mark.parametrize("way", ["run", "another loop", "stream", "direct", "override"])
def test_agents_in_tools_answer_with_the_policy_too(world, model, ask, call, way):
    inner, outer = Agent(model, instructions="Inner."), Agent(model, instructions="Outer.")
    request = [ModelRequest.user_text_prompt("and?")]

    async def consult() -> str:
        """Ask somebody."""
        if way == "run":
            return (await inner.run("and?")).output
        if way == "another loop":
            return (await asyncio.to_thread(lambda: asyncio.run(inner.run("and?")))).output
        if way == "stream":
            async with inner.run_stream("and?") as stream:
                return await stream.get_output()
        if way == "direct":
            return (await direct.model_request(model, request)).text
        with inner.override(model=TestModel()):
            return (await inner.run("and?")).output

    outer.tool_plain(consult)
    world.mind = lambda prompt: (
        "42" if prompt.rpartition("user\n")[2].startswith("and?")
        else "It is 42." if "42" in prompt else call("consult")
    )  # fmt: skip
    [episode] = world.play(outer, ask("well?"))
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    first, second, third = episode.interactions
    assert (first.parent, second.parent, third.parent) == (None, None, first.id)
    assert third.output["content"] == "It is 42."


@pytest.mark.parametrize("is_async", [True, False])
def test_many_records_on_one_agent_each_find_their_own_session(world, model, ask, call, is_async):
    agent = Agent(model)
    together = threading.Barrier(2, timeout=20)

    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(0)
        return "waited"

    def wait_in_a_thread() -> str:
        """Wait."""
        together.wait()  # at least two are in their tools at the same time
        return "waited"

    agent.tool_plain(wait if is_async else wait_in_a_thread, name="wait")

    def mind(prompt):
        asked = prompt.split("user\n")[1].split("<|im_end|>")[0]
        return f"You said {asked}" if "waited" in prompt else call("wait")

    world.mind = mind
    names = [f"name {number}" for number in range(24)]
    for name, episode in zip(names, world.play(agent, *map(ask, names)), strict=True):
        first, second = episode.interactions
        assert first.messages == ({"role": "user", "content": name},)
        assert second.output["content"] == f"You said {name}"
        assert second.parent == first.id
    log = {entry.ids for entry in world.engine.log}
    assert len(log) == 25  # 24 farewells, one way to call the tool


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_trained_is_what_was_sampled(world, agent, ask, call, stream):
    other = '<tool_call>{"name": "add", "arguments": {"b":2 , "a":1}}</tool_call>'
    world.says("Größe \u2028😀 " + call("add", a=1, b=2), other, "3")

    async def hear(ctx, events):
        async for _ in events:
            pass

    from agentrl_pydantic_ai.routing import route_to_policy

    async def run(data):
        with route_to_policy():
            await agent.run(data["messages"][0]["content"], event_stream_handler=hear if stream else None)
        return 1.0

    [episode] = world.play(run, ask("1 + 2?"))
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    interactions, log = episode.interactions, world.engine.log
    assert [item.parent for item in interactions] == [None, interactions[0].id, interactions[1].id]
    assert [item.output_ids for item in interactions] == [entry.ids for entry in log]
    assert [item.logprobs for item in interactions] == [entry.logprobs for entry in log]
    assert episode.full_ids(interactions[-1]) == log[-1].request.prompt_ids + log[-1].ids


def test_settings_go_with_the_call_but_for_those_of_the_transport(world, ask):
    settings = {"temperature": 1.0, "max_tokens": 7, "stop_sequences": ["x"], "max_retries": 5, "timeout": 0.0001}
    world.says("hi")
    [episode] = world.play(Agent(OpenAIChatModel("gpt-5", provider=OPENAI, settings=settings)), ask("?"))
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    sampling = world.engine.log[0].request.sampling
    assert (sampling.max_tokens, tuple(sampling.stop)) == (7, ("x",))
    world.engine.refuse = True
    settings["max_retries"] = 5
    [episode] = world.play(Agent(OpenAIChatModel("gpt-5", provider=OPENAI, settings=settings)), ask("?"))
    assert (episode.record.outcome, world.engine.calls) == (Outcome.FAILED, 2)


def test_nothing_of_an_episode_is_traced(world, model, ask, call):
    seen = []

    class Tracer(trace.NoOpTracer):
        def start_span(self, name, context=None, **kwargs):
            parent = trace.get_current_span(context).get_span_context()
            seen.append((parent.is_valid, parent.trace_flags.sampled, telemetry.get_value("suppress_instrumentation")))
            return super().start_span(name, context, **kwargs)

        def start_as_current_span(self, name, context=None, **kwargs):
            self.start_span(name, context)
            return super().start_as_current_span(name, context, **kwargs)

    class Provider(trace.NoOpTracerProvider):
        def get_tracer(self, *args, **kwargs):
            return Tracer()

    agent = Agent(model)
    agent.instrument = InstrumentationSettings(tracer_provider=Provider())
    agent.tool_plain(lambda: "seen", name="look")
    world.says(call("look"), "hi")
    [episode] = world.play(agent, ask("?"))
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    assert set(seen) == {(True, False, True)}
    assert telemetry.get_value("suppress_instrumentation") is None


def test_installing_again_changes_nothing():
    routing.install()
    before = {name: vars(Model)[name] for name in routing.ENTRANCES}
    routing.install()
    assert before == {name: vars(Model)[name] for name in routing.ENTRANCES}


def test_a_pydantic_ai_with_other_entrances_is_refused_by_version(monkeypatch):
    monkeypatch.setattr(routing, "ENTRANCES", (*routing.ENTRANCES, "answer"))
    with pytest.raises(PluginError, match=r"of pydantic-ai 2\.\S+, which has no Model\.answer"):
        routing.install()


def test_thoughts_and_schemas_keep_their_shape(world, ask):
    assert issubclass(PolicyModel, OpenAIChatModel)
    world.says("<think>hm</think>Well.", "Done.")
    agent = Agent(OpenAIChatModel("o3", provider=OPENAI))

    async def run(data):
        with routing.route_to_policy():
            first = await agent.run("one")
            await agent.run("two", message_history=first.all_messages())
        return 1.0

    [episode] = world.play(run, ask("?"))
    assert [item.parent for item in episode.interactions] == [None, episode.interactions[0].id]
