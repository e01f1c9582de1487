"""Agents of CAMEL, in CAMEL's own interpreter, against the real gateway."""

import pytest

from agentrl_core.types import Outcome
from agentrl_testing import WorkerAdapterSuite

pytestmark = pytest.mark.slow  # four processes import CAMEL


class TestConformance(WorkerAdapterSuite):
    @pytest.fixture
    def adapter(self):
        return "agentrl_camel.worker:adapt"

    @pytest.fixture
    def python(self, framework_python):
        return framework_python

    @pytest.fixture
    def agent(self, request):
        return f"{request.path.parent}/agents.py:agent"


def check_exact(play, episode):
    """What is trained is what was sampled, in one row."""
    log = play.engine.log
    assert [item.output_ids for item in episode.interactions] == [entry.ids for entry in log]
    assert [item.logprobs for item in episode.interactions] == [entry.logprobs for entry in log]
    assert episode.full_ids(episode.interactions[-1]) == log[-1].request.prompt_ids + log[-1].ids


@pytest.mark.parametrize(
    ("case", "content"),
    # CAMEL forgets what a streamed reply says beside a call: it goes on from another history, in a row of its own
    [("factory", "Let me see."), ("tools object", "Let me see."), ("streamed", "")],
)
@pytest.mark.parametrize("arguments", ['{"a": 2, "b": 2}', '{ "b":2 ,\n "a" : 2}'])
def test_a_dialogue_with_tools_is_one_chain_of_what_was_sampled(play, call, case, content, arguments):
    episode = play(case, content + call("add", arguments), call("add", arguments), "It is 4.")
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    first, second, third = episode.interactions
    assert [first.parent, second.parent, third.parent] == [None, first.id, second.id]
    assert [message["content"] for message in (*second.messages, *third.messages)] == ["4", "4"]
    check_exact(play, episode)


def test_the_agents_settings_go_with_its_calls(play):
    episode = play("object", "It is 4.")
    assert play.prompts[0].startswith("<|im_start|>system\nYou answer.<|im_end|>")
    assert episode.interactions[0].model == "gpt-4o-mini"
    assert play.engine.log[0].request.sampling.max_tokens == 77


def test_an_agent_remembers_nothing_of_the_record_before(play, call):
    for _ in range(2):
        episode = play("tools object", call("note", '{"text": "a"}'), "Noted.")
        assert len(episode.interactions) == 2
        assert play.prompts[1].count("What is 2 + 2?") == 1


def test_a_factory_makes_an_agent_with_fresh_tools_for_each_record(play, call):
    for _ in range(2):
        episode = play("factory", call("note", '{"text": "a"}'), "Noted.")
        assert [message["content"] for message in episode.interactions[1].messages] == ["1 notes"]


def test_an_agent_that_a_tool_asks_answers_with_the_policy_too(play, call):
    asked = call("ask_a_colleague", '{"question": "2 + 2?"}')
    episode = play("factory", asked, "It is 4.")
    # the colleague's conversation begins anew: it says what the policy says first
    assert len(episode.interactions) == 3
    assert any("You are the colleague." in prompt for prompt in play.prompts)


@pytest.mark.parametrize(("said", "reward"), [("It is 4.", 1.0), ("4, no: 5", 0.0), ("four", 0.0)])
def test_the_math_agent_is_rewarded_for_the_right_number(play, said, reward):
    assert play("math", said).record.reward == reward


def test_the_math_agent_with_a_tool_calculates(play, call):
    episode = play("math with a tool", call("calculator", '{"expression": "(1 + 3) * 2 / 2"}'), "It is 4.")
    assert episode.record.reward == 1.0
    assert episode.interactions[1].messages[0]["content"] == "4"
    check_exact(play, episode)


def test_the_calculator_takes_nothing_but_arithmetic(play, call):
    episode = play("math with a tool", call("calculator", '{"expression": "open(1)"}'), "4")
    assert "cannot evaluate 'open(1)'" in episode.interactions[1].messages[0]["content"]


def test_a_workflow_may_reward_by_ids_and_hold_the_policy_to_a_schema(play):
    episode = play("structured", '{"total": 4}')
    assert (episode.record.outcome, episode.record.reward) == (Outcome.SCORED, 4.0), episode.record.detail


def test_agents_in_a_workflow_reach_the_policy_by_the_environment(play):
    assert play("environment", "Hi.").record.reward == 0.25


def test_the_input_may_be_another_field(play):
    play("keyed", "4", question="How much?")
    assert "How much?" in play.prompts[0]
    assert "2 + 2" not in play.prompts[0]


def test_a_longer_conversation_is_refused_before_a_part_of_it_is_lost(play):
    said = [{"role": role, "content": "?"} for role in ("user", "assistant", "user")]
    record = play("object", messages=said).record
    assert (record.outcome, record.reason) == (Outcome.FAILED, "ValueError")
    assert "has 3 messages" in record.detail


def test_records_at_once_reach_each_their_own_session(play, call):
    episodes = play("factory", call("add", '{"a": 2, "b": 2}'), "It is 4.", times=4)
    assert [len(episode.interactions) for episode in episodes] == [2] * 4


def test_a_call_that_fails_is_not_tried_again(play):
    before = play.engine.calls
    play.engine.refuse = True
    record = play("object").record
    play.engine.refuse = False
    assert (record.outcome, play.engine.calls) == (Outcome.FAILED, before + 1)
    assert "aborted" in record.detail
    assert play("object", "It is 4.").record.outcome is Outcome.SCORED


def test_an_agent_that_hangs_is_ended_and_the_next_has_a_new_process(play):
    play.engine.silent = True
    assert play("object", "It is 4.", timeout_s=0.5).record.outcome is Outcome.TIMED_OUT
    play.engine.silent = False
    assert play("object", "It is 4.").record.outcome is Outcome.SCORED
