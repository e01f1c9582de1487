import pytest

from agentrl_core.types import Outcome
from agentrl_testing.workflows import WorkflowSuite

ROW = {"id": "t", "messages": [{"role": "user", "content": "What is 12 * 12?"}], "answer": "144"}


class TestMathAgent(WorkflowSuite):
    @pytest.fixture
    def workflow(self):
        return "agentrl_langchain.math_agent.MathAgent"

    @pytest.fixture
    def data(self):
        return ROW

    @pytest.fixture
    def say(self):
        return lambda prompt: "It is 144."


@pytest.mark.parametrize(("said", "reward"), [("12 * 12 = 144", 1.0), ("145", 0.0), ("no idea", 0.0)])
def test_the_last_number_decides(world, said, reward):
    world.says(said)
    [episode] = world.play("agentrl_langchain.math_agent.MathAgent", ROW)
    assert (episode.record.outcome, episode.record.reward) == (Outcome.SCORED, reward)


def test_the_tool_agent_calculates(world, call):
    world.says(call("calculator", expression="12 *"), call("calculator", expression="12 * 12"), "144")
    [episode] = world.play("agentrl_langchain.math_agent.MathToolAgent", ROW)
    assert episode.record.reward == 1.0, episode.record.detail
    _, after_a_slip, after = episode.interactions
    assert "cannot evaluate" in after_a_slip.messages[-1]["content"]
    assert after.messages[-1]["content"] == "144"
    assert after.parent == after_a_slip.id
