import asyncio

import pytest
from agents import (
    Agent,
    AsyncOpenAI,
    GuardrailFunctionOutput,
    ModelRetrySettings,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    RunContextWrapper,
    Runner,
    function_tool,
    input_guardrail,
    output_guardrail,
    trace,
)
from agents.models import _openai_shared
from agents.models.interface import Model
from agents.retry import retry_policies
from agents.tracing import get_current_trace, set_trace_processors
from agents.tracing.processor_interface import TracingProcessor

from agentrl_core.config.component import Component
from agentrl_core.config.sampling_sections import AgentConfig, RolloutConfig
from agentrl_core.errors import ConfigError
from agentrl_core.rollout.subproc.resolving import resolve_in_workers
from agentrl_core.types import Outcome
from agentrl_openai.agents_workflow import AgentsWorkflow, interaction_ids
from agentrl_openai.routing import route_to_policy
from agentrl_testing.adapters import AdapterSuite


@function_tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


class Elsewhere(Model):
    """A model of another provider, which nobody may call."""

    model = "other/model"

    async def get_response(self, *args, **kwargs):
        raise AssertionError("the provider was called")

    def stream_response(self, *args, **kwargs):
        raise AssertionError("the provider was called")


MODELS = {
    "a name": lambda: "gpt-5-mini",
    "no model": lambda: None,
    "chat": lambda: OpenAIChatCompletionsModel("gpt-4.1", AsyncOpenAI()),
    "responses": lambda: OpenAIResponsesModel("gpt-4.1", AsyncOpenAI()),
    "another provider": Elsewhere,
}


class TestAgent(AdapterSuite):
    @pytest.fixture
    def agent_factory(self):
        return lambda: Agent(name="adder", instructions="Be brief.", model="gpt-5-mini", tools=[add])


class TestChatModel(AdapterSuite):
    @pytest.fixture
    def agent_factory(self):
        return lambda: Agent(name="adder", model=OpenAIChatCompletionsModel("gpt-4.1", AsyncOpenAI()), tools=[add])


@pytest.mark.parametrize(("model", "stream"), [*((model, False) for model in MODELS), ("a name", True), ("chat", True)])
def test_an_agent_uses_its_tools_until_the_policy_answers(world, ask, call, model, stream):
    world.says("Let me see. " + call("add", a=1, b=2) + call("add", a=3, b=4), "3 and 7")
    agent = Agent(name="adder", instructions="You add.", model=MODELS[model](), tools=[add])
    [episode] = world.run(AgentsWorkflow(agent, stream=stream), ask("1 + 2, 3 + 4?"))
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    first, second = episode.interactions
    assert second.parent == first.id
    assert [message["content"] for message in second.messages] == ["3", "7"]
    names = {"a name": "gpt-5-mini", "another provider": "other/model", "no model": "gpt-5.6-luna"}
    assert first.model == names.get(model, "gpt-4.1")
    log = world.engine.log
    assert [item.output_ids for item in episode.interactions] == [entry.ids for entry in log]
    assert episode.full_ids(second) == log[-1].request.prompt_ids + log[-1].ids


def test_the_sdks_default_api_is_the_one_that_is_called(world, ask, monkeypatch):
    world.says("hi")
    agent = Agent(name="a", model="gpt-5-mini")
    [responses] = world.run(agent, ask("hello"))
    monkeypatch.setattr(_openai_shared, "_use_responses_by_default", False)
    [chat] = world.run(agent, ask("hello"))
    assert responses.interactions[0].id.startswith("resp_")
    assert chat.interactions[0].id.startswith("chatcmpl-")


def test_handoffs_and_agents_as_tools_answer_with_the_policy(world, ask, call):
    helper = Agent(name="helper", instructions="You help.", model="gpt-5-nano")
    expert = Agent(name="Expert", instructions="You know.", model=Elsewhere(), handoff_description="knows")
    asks_alone = RunConfig(model="gpt-4.1", workflow_name="alone")
    tools = [helper.as_tool("ask_helper", "Ask."), helper.as_tool("ask_alone", "Ask.", run_config=asks_alone)]
    boss = Agent(name="boss", instructions="You lead.", model="gpt-5", tools=tools, handoffs=[expert])

    def mind(prompt):
        if "You help." in prompt:
            return "Helped."
        if "You know." in prompt:
            return "Known."
        turns = prompt.count("<|im_start|>assistant\n")
        return [call("ask_helper", input="a"), call("ask_alone", input="b"), call("transfer_to_expert")][turns - 1]

    world.mind = mind
    [episode] = world.run(boss, ask("well?"))
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    assert [item.model for item in episode.interactions] == [
        "gpt-5", "gpt-5-nano", "gpt-5", "gpt-4.1", "gpt-5", "other/model",
    ]  # fmt: skip


def test_many_records_share_one_agent_and_its_tools(world, ask, call):
    """Each finds its own session, also in runs that its tools start."""
    inner = Agent(name="inner", instructions="You echo.", model="gpt-5")

    @function_tool
    async def repeat(text: str) -> str:
        """Repeat."""
        await asyncio.sleep(0)
        return (await Runner.run(inner, text)).final_output

    def mind(prompt):
        said = prompt.split("user\n")[1].split("<|im_end|>")[0]
        asks = "You echo." not in prompt and prompt.count("<|im_start|>assistant\n") == 1
        return call("repeat", text=said) if asks else f"You {said}"

    world.mind = mind
    agent = Agent(name="outer", instructions="Ask.", model="gpt-5", tools=[repeat])
    names = [f"name {number}" for number in range(12)]
    for name, episode in zip(names, world.run(agent, *map(ask, names)), strict=True):
        assert episode.record.outcome is Outcome.SCORED, episode.record.detail
        outer, repeated, last = episode.interactions
        assert outer.messages[-1]["content"] == repeated.messages[-1]["content"] == name
        assert last.messages[-1]["content"] == repeated.output["content"] == f"You {name}"
        assert (outer.parent, repeated.parent, last.parent) == (None, None, outer.id)


@pytest.mark.parametrize("model", ["a name", "chat"])
def test_retries_that_an_agent_asks_for_are_off(world, ask, model):
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=3, policy=retry_policies.any(lambda context: True)))
    agent = Agent(name="a", model=MODELS[model](), model_settings=settings)
    world.engine.refuse = True
    [episode] = world.run(agent, ask("hello"))
    assert episode.record.outcome is Outcome.FAILED
    assert world.engine.calls == 1


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_without_turns_left_is_scored_as_it_stands(world, ask, call, stream):
    world.says(*[call("add", a=1, b=2)] * 9)
    agent = Agent(name="a", model="gpt-5", tools=[add])
    workflow = AgentsWorkflow(agent, max_turns=2, stream=stream)
    [episode] = world.run(workflow, ask("1 + 2?"), scorer=lambda request: 0.25)
    assert (episode.record.outcome, episode.record.reward) == (Outcome.SCORED, 0.25), episode.record.detail
    assert len(episode.interactions) == 2


def test_a_tool_may_give_the_answer_to_judge(world, ask, call):
    world.says(call("add", a=1, b=2))
    agent = Agent(name="a", model="gpt-5", tools=[add], tool_use_behavior="stop_on_first_tool")
    judged = []
    [episode] = world.run(agent, ask("1 + 2?"), scorer=lambda request: judged.append(request.answer) or 1.0)
    assert (episode.record.outcome, len(episode.interactions), judged) == (Outcome.SCORED, 1, ["3"])


def test_a_tool_that_does_not_exist_ends_the_episode_unless_the_run_is_told_otherwise(world, ask, call):
    world.says(call("subtract", a=1), "Sorry.")
    agent = Agent(name="a", model="gpt-5", tools=[add])
    [ended] = world.run(agent, ask("1 - 2?"))
    assert (ended.record.outcome, len(ended.interactions)) == (Outcome.SCORED, 1)
    told = AgentsWorkflow(agent, run_config={"tool_not_found_behavior": "return_error_to_model"})
    [went_on] = world.run(told, ask("1 - 2?"))
    assert (went_on.record.outcome, len(went_on.interactions)) == (Outcome.SCORED, 2)
    assert "subtract" in went_on.interactions[1].messages[0]["content"]


def test_guardrails_call_the_policy_and_may_end_the_episode(world, ask):
    judge = Agent(name="judge", instructions="Judge.", model="gpt-5-nano")

    @input_guardrail(run_in_parallel=False)
    async def harmless(context: RunContextWrapper, agent: Agent, given) -> GuardrailFunctionOutput:
        verdict = await Runner.run(judge, "fine?")
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered="no" in verdict.final_output)

    @output_guardrail
    async def polite(context: RunContextWrapper, agent: Agent, output: str) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered="damn" in output)

    agent = Agent(name="a", instructions="Answer.", model="gpt-5", input_guardrails=[harmless],
                  output_guardrails=[polite])  # fmt: skip
    for verdict, answer, models in [
        ("yes", "hi", ["gpt-5-nano", "gpt-5"]),
        ("no", "hi", ["gpt-5-nano"]),
        ("yes", "damn", ["gpt-5-nano", "gpt-5"]),
    ]:
        world.mind = lambda prompt, verdict=verdict, answer=answer: verdict if "Judge." in prompt else answer
        [episode] = world.run(agent, ask("hello"))
        assert episode.record.outcome is Outcome.SCORED, episode.record.detail
        assert [item.model for item in episode.interactions] == models


def test_an_agent_that_raises_fails_with_its_own_error(world, ask):
    async def instructions(context, agent):
        raise OSError("no prompt today")

    [episode] = world.run(Agent(name="a", instructions=instructions, model="gpt-5"), ask("hello"))
    assert (episode.record.outcome, episode.record.reason) == (Outcome.FAILED, "OSError")
    assert "no prompt today" in episode.record.detail


AGENT_FILE = """
from dataclasses import dataclass
from agents import Agent, RunContextWrapper

@dataclass
class City:
    row: dict

def instructions(context: RunContextWrapper[City], agent):
    return f"You live in {context.context.row['city']}."

def build_agent():
    return Agent[City](name="local", instructions=instructions, model="gpt-5")

agent = build_agent()
"""


@pytest.mark.parametrize("name", ["build_agent", "agent"])
def test_a_config_names_an_agent_or_its_factory_and_what_makes_its_context(world, tmp_path, name):
    (tmp_path / "my_openai_agent.py").write_text(AGENT_FILE)
    world.says("hi")
    options = {"context": "my_openai_agent.py:City", "input_key": "question", "max_turns": 3}
    row = {"city": "Oslo", "question": "Where?"}
    [episode] = world.run(f"{tmp_path}/my_openai_agent.py:{name}", row, options=options)
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    assert [message["content"] for message in episode.interactions[0].messages] == ["You live in Oslo.", "Where?"]


def test_the_row_is_the_context_unless_something_makes_one(world, ask):
    def instructions(context, agent):
        return f"You live in {context.context['city']}."

    world.says("hi")
    [episode] = world.run(Agent(name="a", instructions=instructions, model="gpt-5"), {**ask("hello"), "city": "Bergen"})
    assert episode.interactions[0].messages[0]["content"] == "You live in Bergen."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_turn": 3}, r"max_turn: .*did you mean .*max_turns"),
        ({"run_config": {"model": "gpt-5"}}, "model cannot be set: the policy is the model"),
        ({"run_config": {"modle_settings": {}}}, "workflow.run_config: .*modle_settings"),
        ({"context": "sys:path"}, "expected a function or class that makes a context"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(world, tmp_path, options, message):
    (tmp_path / "my_openai_agent.py").write_text(AGENT_FILE)
    with pytest.raises(ConfigError, match=message):
        world.run(f"{tmp_path}/my_openai_agent.py:agent", options=options)


class Spy(TracingProcessor):
    def __init__(self):
        self.seen = []

    def on_trace_start(self, trace):
        self.seen.append(trace)

    on_trace_end = on_span_start = on_span_end = on_trace_start

    def shutdown(self):
        pass

    def force_flush(self):
        pass


@pytest.fixture
def spy():
    made = Spy()
    set_trace_processors([made])
    yield made
    set_trace_processors([])


def test_nothing_of_an_episode_is_traced(world, ask, call, spy):
    @function_tool
    async def traced() -> str:
        """Trace."""
        with trace("mine"):
            pass
        return (await Runner.run(Agent(name="inner", model="gpt-5"), "hi", run_config=RunConfig())).final_output

    world.says(call("traced"), "done")
    world.mind = lambda prompt: "done" if "traced" not in prompt or "tool_response" in prompt else call("traced")
    [episode] = world.run(Agent(name="a", model="gpt-5", tools=[traced]), ask("hello"))
    assert len(episode.interactions) == 3
    assert spy.seen == []
    with trace("outside"):
        assert get_current_trace() is not None
    assert len(spy.seen) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["a name", "chat"])
def test_rewards_may_be_given_by_the_interaction_of_each_turn(world, ask, call, model, stream):
    agent = Agent(name="a", model=MODELS[model](), tools=[add])

    async def run(data):
        with route_to_policy():
            if stream:
                result = Runner.run_streamed(agent, data["messages"])
                async for _ in result.stream_events():
                    pass
            else:
                result = await Runner.run(agent, data["messages"])
        first, last = interaction_ids(result)
        return {first: 0.25, last: 1.0}

    world.says(call("add", a=1, b=2), "3")
    [episode] = world.run(run, ask("1 + 2?"))
    assert [episode.record.rewards[item.id] for item in episode.interactions] == [0.25, 1.0], episode.record.detail


def test_outside_an_episode_agents_keep_their_models(world):
    agent = Agent(name="a", model=Elsewhere())
    AgentsWorkflow(agent)
    with pytest.raises(AssertionError, match="the provider was called"):
        asyncio.run(Runner.run(agent, "hi", run_config=RunConfig(tracing_disabled=True)))


@pytest.mark.slow
def test_an_agent_is_trained_in_worker_processes(world, tmp_path, call):
    (tmp_path / "worker_agent.py").write_text(AGENT_FILE)
    workflow = resolve_in_workers(
        Component("worker_agent.py:build_agent", {"context": "worker_agent.py:City", "input_key": "question"}),
        registry=world.registry,
        base_dir=tmp_path,
        rollout=RolloutConfig(agent=AgentConfig(mode="subproc", subproc_max_workers=1)),
    )
    world.says("hi")
    try:
        episodes = world.play_rows(workflow, *[{"city": city, "question": "Where?"} for city in ("Oslo", "Bergen")])
    finally:
        workflow.close_now()
    for city, episode in zip(("Oslo", "Bergen"), episodes, strict=True):
        assert episode.record.outcome is Outcome.SCORED, episode.record.detail
        assert episode.interactions[0].messages[0]["content"] == f"You live in {city}."
