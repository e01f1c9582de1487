import pytest

from agentrl_core.types import Outcome
from agentrl_testing.workflows import WorkflowSuite

ROW = {"id": "t", "messages": [{"role": "user", "content": "What is 12 * 12?"}], "answer": "144"}
RIGHT = '<tool_call>{"name": "final_answer", "arguments": {"answer": "144"}}</tool_call>'


class TestMathAgent(WorkflowSuite):
    @pytest.fixture
    def workflow(self):
        return "agentrl_smolagents.math_agent.MathAgent"

    @pytest.fixture
    def data(self):
        return ROW

    @pytest.fixture
    def say(self):
        return lambda prompt: RIGHT


@pytest.mark.parametrize(("said", "reward"), [("12 * 12 = 144", 1.0), ("145", 0.0), ("no idea", 0.0)])
def test_the_last_number_of_the_final_answer_decides(world, final, said, reward):
    world.says(final(said))
    [episode] = world.play("agentrl_smolagents.math_agent.MathAgent", ROW)
    assert (episode.record.outcome, episode.record.reward) == (Outcome.SCORED, reward), episode.record.detail


def test_the_tool_agent_calculates(world, call, final):
    world.mind = lambda prompt: (
        final("144") if "144.0" in prompt
        else call("calculator", expression="12 * 12") if "cannot evaluate" in prompt
        else call("calculator", expression="12 *")
    )  # fmt: skip
    [episode] = world.play("agentrl_smolagents.math_agent.MathToolAgent", ROW)
    assert (episode.record.reward, len(episode.interactions)) == (1.0, 3), episode.record.detail
