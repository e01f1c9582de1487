"""Agents of OpenHands, in OpenHands' own interpreter, against the real gateway."""

import pytest

from agentrl_core.config.sampling_sections import AgentConfig, RolloutConfig
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.subproc.resolving import resolve_in_workers
from agentrl_core.types import Outcome
from agentrl_testing import WorkerAdapterSuite

pytestmark = pytest.mark.slow  # OpenHands takes 10 s of CPU to import


class TestConformance(WorkerAdapterSuite):
    @pytest.fixture
    def adapter(self):
        return "agentrl_openhands.worker:adapt"

    @pytest.fixture
    def python(self, framework_python):
        return framework_python

    @pytest.fixture
    def agent(self, request):
        return f"{request.path.parent}/agents.py:agent"

    @pytest.fixture
    def resolved(self, agent, python, tmp_path):
        config = AgentConfig(mode="subproc", python=python, subproc_max_workers=1)  # a second would take 10 s more
        return resolve_in_workers(
            agent, registry=load_registry(), base_dir=tmp_path, rollout=RolloutConfig(agent=config, timeout_s=120.0)
        )


def check_exact(play, episode):
    """What is trained is what was sampled, in one row."""
    log = play.engine.log
    assert [item.output_ids for item in episode.interactions] == [entry.ids for entry in log]
    assert [item.logprobs for item in episode.interactions] == [entry.logprobs for entry in log]
    assert episode.full_ids(episode.interactions[-1]) == log[-1].request.prompt_ids + log[-1].ids


@pytest.mark.parametrize("case", ["factory", "tools object", "responses"])
@pytest.mark.parametrize("arguments", ['{"text": "é"}', '{ "text" :"a"\n}'])
def test_a_dialogue_with_tools_is_one_chain_of_what_was_sampled(play, call, case, arguments):
    for _ in range(2):  # of notes in the workspace, each record begins with none
        episode = play(case, "Let me see." + call("note", arguments), call("note", arguments), "Noted.")
        assert episode.record.outcome is Outcome.SCORED, episode.record.detail
        first, second, third = episode.interactions
        assert [first.parent, second.parent, third.parent] == [None, first.id, second.id]
        told = [str(message["content"]) for message in (*second.messages, *third.messages)]
        assert ["1 notes" in told[0], "2 notes" in told[1]] == [True, True], told
        check_exact(play, episode)


def test_what_finish_says_is_the_answer(play, call):
    judged = []
    play.scorer = lambda request: judged.append(request.answer) or 0.5
    play("tools object", call("finish", '{"message": "It is 4."}'))
    play("tools object", "It is 5.")
    assert judged == ["It is 4.", "It is 5."]


def test_the_agents_settings_go_with_its_calls(play):
    episode = play("object", "It is 4.")
    assert play.prompts[0].startswith("<|im_start|>system\nYou answer.<|im_end|>")
    assert episode.interactions[0].model == "gpt-4o-mini"
    assert play.engine.log[0].request.sampling.max_tokens == 77


def test_an_agent_that_goes_on_and_on_is_stopped_and_judged(play, call):
    episode = play("tools object", *(call("note", f'{{"text": "{number}"}}') for number in range(9)))
    assert (episode.record.outcome, len(episode.interactions)) == (Outcome.SCORED, 4), episode.record.detail


def test_the_llm_of_a_condenser_answers_with_the_policy_too(play, call):
    episode = play("condensed", *(call("note", f'{{"text": "{number}"}}') for number in range(12)))
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    assert "gpt-4o" in {item.model for item in episode.interactions}


@pytest.mark.parametrize(("said", "reward"), [("It is 4.", 1.0), ("4, no: 5", 0.0)])
def test_the_math_agent_is_rewarded_for_the_right_number(play, said, reward):
    assert play("math", said).record.reward == reward


def test_the_math_agent_with_a_tool_calculates(play, call):
    episode = play("math with a tool", call("calculator", '{"expression": "(1 + 3) * 2 / 2"}'), "It is 4.")
    assert episode.record.reward == 1.0
    assert "4" in str(episode.interactions[1].messages[0]["content"])
    check_exact(play, episode)


def test_the_calculator_takes_nothing_but_arithmetic(play, call):
    episode = play("math with a tool", call("calculator", '{"expression": "open(1)"}'), "4")
    assert "cannot evaluate 'open(1)'" in str(episode.interactions[1].messages[0]["content"])


def test_agents_in_a_workflow_reach_the_policy_by_the_environment(play):
    record = play("environment", "Hi.").record
    assert record.reward == 0.25, record.detail


def test_the_input_may_be_another_field(play):
    play("keyed", "4", question="How much?")
    assert "How much?" in play.prompts[0]
    assert "2 + 2" not in play.prompts[0]


def test_a_longer_conversation_is_refused_before_a_part_of_it_is_lost(play):
    said = [{"role": role, "content": "?"} for role in ("user", "assistant", "user")]
    record = play("object", messages=said).record
    assert (record.outcome, record.reason) == (Outcome.FAILED, "ValueError")
    assert "has 3 messages" in record.detail


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
    assert play("object", "It is 4.", timeout_s=1.0).record.outcome is Outcome.TIMED_OUT
    play.engine.silent = False
    assert play("object", "It is 4.").record.outcome is Outcome.SCORED
