"""Episodes of environments in verifiers' own interpreter, against the real gateway."""

import pytest

from agentrl_core.types import Outcome

pytestmark = pytest.mark.slow  # each environment is a process that imports verifiers


@pytest.mark.parametrize(("reply", "reward"), [("3", 1.5), ("4", 0.5), ("003", 1.0)])
def test_the_reward_is_that_of_the_environment(play, tasks, reply, reward):
    episode = play("adding")(tasks("adding")[1], reply)
    assert (episode.record.outcome, episode.record.reward) == (Outcome.SCORED, reward), episode.record.detail
    (call,) = episode.interactions
    assert [message["content"] for message in call.messages] == ["You add.", "1 + 2?"]
    assert call.trainable


def test_a_reply_that_the_environment_cannot_rate_is_no_zero(play, tasks):
    record = play("adding")(tasks("adding")[1], "three").record
    assert (record.outcome, record.reason, record.reward) == (Outcome.REJECTED, "environment_lost", None)
    assert "verifiers environment 'adding', task 1: TaskError" in record.detail
    assert "invalid literal for int()" in record.detail


@pytest.mark.parametrize(("index", "place"), [(0, "setup"), (1, "reward")])
def test_a_failure_of_the_environment_is_no_zero(play, tasks, index, place):
    record = play("breaking")(tasks("breaking")[index], "x").record
    assert (record.outcome, record.reason, record.reward) == (Outcome.REJECTED, "environment_lost", None)
    assert f"the sandbox is gone in {place}" in record.detail


def test_the_episode_after_a_failure_is_scored(play, tasks):
    assert play("breaking")(tasks("breaking")[2], "x").record.reward == 1.0


def test_a_call_that_the_gateway_refuses_fails_the_record(play, tasks):
    player = play("breaking")
    player.engine.refuse = True
    record = player(tasks("breaking")[2], "x").record
    player.engine.refuse = False
    assert (record.outcome, record.reason) == (Outcome.FAILED, "RuntimeError"), record.detail
    assert "ProviderError" in record.detail


def test_an_agent_calls_the_tools_of_its_environment(play, tasks):
    call = '<tool_call>{"name": "facts_lookup", "arguments": {"word": "two"}}</tool_call>'
    wrong = '<tool_call>{"name": "facts_search", "arguments": {}}</tool_call>'
    episode = play("looking_up")(tasks("looking_up")[0], call, wrong, "2")
    assert episode.record.reward == 1.0, episode.record.detail
    first, second, third = episode.interactions
    assert [first.parent, second.parent, third.parent] == [None, first.id, second.id]
    assert [message["content"] for message in (*second.messages, *third.messages)] == [
        "2",
        "error: unknown tool 'facts_search'",
    ]


def test_each_agent_has_its_own_reward_and_a_judge_trains_nothing(play, tasks):
    player = play("guessing")
    episode = player(tasks("guessing", size=1)[0], "1", "7")
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    calls = {call.messages[-1]["content"]: call for call in episode.interactions}
    one, two, again, judge = calls.values()
    assert [call.trainable for call in (one, two, again, judge)] == [True, True, True, False]
    assert again.parent == one.id
    assert episode.record.rewards == {again.id: 1.0, two.id: 0.0}


def test_an_episode_that_takes_too_long_ends_and_the_next_is_played(play, tasks):
    player = play("adding")
    player.engine.silent = True
    assert player(tasks("adding")[1], "3", timeout_s=1.0).record.outcome is Outcome.TIMED_OUT
    player.engine.silent = False
    assert player(tasks("adding")[1], "3").record.outcome is Outcome.SCORED


def test_many_episodes_each_reach_their_own_session(play, tasks):
    episodes = play("adding")(tasks("adding")[0], "2", times=6)
    assert [len(episode.interactions) for episode in episodes] == [1] * 6
    assert [episode.record.reward for episode in episodes] == [1.5] * 6
