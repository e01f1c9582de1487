import subprocess
import sys

import pytest

from agentrl_core import workflow_context
from agentrl_core.types import Outcome
from agentrl_examples.calculator import same_number
from agentrl_openai.math_agent import MathAgent, MathToolAgent, MultiTurnMathAgent
from agentrl_testing.workflows import WorkflowSuite

TASK = {"id": "t", "messages": [{"role": "user", "content": "What is 2 + 2?"}], "answer": "4"}


class TestMathAgent(WorkflowSuite):
    @pytest.fixture
    def workflow(self):
        return "agentrl_openai.math_agent.MathAgent"

    @pytest.fixture
    def data(self):
        return TASK


class TestMathToolAgent(WorkflowSuite):
    @pytest.fixture
    def workflow(self):
        return MathToolAgent

    @pytest.fixture
    def data(self):
        return TASK


@pytest.mark.parametrize(("said", "reward"), [("It is 4.0", 1.0), ("It is 5", 0.0), ("Who knows?", 0.0), ("", 0.0)])
def test_the_last_number_of_the_reply_decides(world, said, reward):
    world.says(said)
    [episode] = world.run(MathAgent(), TASK)
    assert episode.record.reward == reward, episode.record.detail


def test_a_wrong_answer_may_be_tried_again(world):
    world.says("5", "6", "4")
    [right, wrong] = [world.run(MultiTurnMathAgent(max_turns=turns), TASK)[0] for turns in (3, 2)]
    assert (right.record.reward, len(right.interactions)) == (1.0, 3)
    assert (wrong.record.reward, len(wrong.interactions)) == (0.0, 2)
    assert [item.parent for item in right.interactions] == [None, *(item.id for item in right.interactions[:-1])]


def test_the_calculator_tells_its_results_and_what_is_wrong(world, call):
    world.says(
        call("calculator", operation="multiply", a=6, b=7) + call("calculator", operation="divide", a=1, b=0),
        call("calculator", operation="root", a=1, b=2) + call("calculator", a=1),
        "It is 4.",
    )
    [episode] = world.run(MathToolAgent(), TASK)
    told = [message["content"] for item in episode.interactions[1:] for message in item.messages]
    assert told[0] == "42"
    assert told[1].startswith("error: ZeroDivisionError")
    assert "'root'" in told[2]
    assert told[3].startswith("error: ")
    assert (episode.record.reward, episode.interactions[2].parent) == (1.0, episode.interactions[1].id)


def test_an_agent_that_only_calculates_gets_nothing(world, call):
    world.says(*[call("calculator", operation="add", a=2, b=2)] * 9)
    [episode] = world.run(MathToolAgent(max_turns=3), TASK)
    assert (episode.record.reward, len(episode.interactions)) == (0.0, 3)


def test_the_environment_is_as_good_as_arguments(world, monkeypatch):
    async def run(data):
        here = workflow_context.get()
        monkeypatch.setenv("OPENAI_BASE_URL", f"{here.base_url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", here.api_key)
        return await MathAgent().run(data)

    world.says("4")
    [episode] = world.run(run, TASK)
    assert episode.record.reward == 1.0, episode.record.detail


@pytest.mark.parametrize("name", ["build_math_agent", "build_math_tool_agent"])
def test_agents_of_the_agents_sdk_are_named_by_their_factories(world, call, name):
    calls = [call("calculator", operation="add", a=2, b=2)] if name == "build_math_tool_agent" else []
    world.says(*calls, "It is <answer>4.0</answer>.")
    [episode] = world.run(
        f"agentrl_openai.agents_math_agent:{name}",
        TASK,
        scorer=lambda request: float(same_number(request.answer, "4")),
    )
    assert (episode.record.outcome, episode.record.reward) == (Outcome.SCORED, 1.0), episode.record.detail
    assert [item.messages[0]["content"] for item in episode.interactions[1:]] == ["4"] * len(calls)


def test_a_factory_may_be_given_its_model(world):
    world.says("4")
    [episode] = world.run(
        "agentrl_openai.agents_math_agent:build_math_agent", TASK, options={"model": "gpt-5-mini", "max_turns": 2}
    )
    assert episode.interactions[0].model == "gpt-5-mini"


def test_the_agents_need_nothing_but_the_sdk():
    blocked = "import sys; sys.modules['agentrl_core'] = None; import agentrl_openai.math_agent"
    assert subprocess.run([sys.executable, "-c", blocked], check=False).returncode == 0
