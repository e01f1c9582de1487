"""Episodes in environments of OpenEnv: against a server with its messages, and against one of its own package."""

import pytest

from agentrl_core.config.component import Component
from agentrl_core.types import Outcome, Task
from agentrl_openenv.dataset import OpenEnvTasks

GUESS = {"action_field": "message", "observation_field": "text"}


@pytest.fixture(params=["described", pytest.param("real", marks=pytest.mark.slow)])
def url(request, server, serve):
    return serve(server.app()) if request.param == "described" else request.getfixturevalue("real_server")


@pytest.fixture
def described(server, serve):
    return serve(server.app())


def call(name, arguments="{}"):
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def test_replies_are_actions_and_observations_are_messages(url, play):
    (task,) = OpenEnvTasks(size=1, first_seed=7)()
    (episode,) = play(Component("openenv", {"url": f"{url}/guess", **GUESS}), [task], "3", "7")
    assert (episode.record.outcome, episode.record.reward) == (Outcome.SCORED, 0.75), episode.record.detail
    first, second = episode.interactions
    assert [message["content"] for message in first.messages] == ["Guess a number."]
    assert [message["content"] for message in second.messages] == ["No, try 2."]
    assert second.parent == first.id


def test_the_last_reward_alone_may_count(url, play):
    options = {"url": f"{url}/guess", **GUESS, "reward": "last", "max_turns": 2, "system_prompt": "You guess."}
    (episode,) = play(Component("openenv", options), OpenEnvTasks(size=1, first_seed=7)(), "3", "4")
    assert episode.record.reward == -0.25, episode.record.detail
    assert episode.interactions[0].messages[0] == {"role": "system", "content": "You guess."}


def test_the_policy_calls_the_tools_of_an_environment(url, play):
    (task,) = OpenEnvTasks(size=1, query="Count to three.")()
    said = (call("count", '{"by": 2}'), call("fail"), call("nothing"), call("count"), "not asked for")
    (episode,) = play(Component("openenv", {"url": f"{url}/counter"}), [task], *said)
    assert episode.record.reward == 1.0, episode.record.detail
    results = [item.messages[-1]["content"] for item in episode.interactions]
    assert results[:2] == ["Count to three.", "The count is 2."]
    assert results[2].startswith("error: ")
    assert results[3].startswith("error: ")
    assert len(results) == 4  # the second count ended the episode


def test_episodes_at_the_same_time_have_environments_of_their_own(url, play):
    tasks = OpenEnvTasks(size=6)()
    episodes = play(Component("openenv", {"url": f"{url}/counter"}), tasks, call("count"), call("count"), "Two.")
    assert [item.record.reward for item in episodes] == [0.0] * 6
    for episode in episodes:
        assert [item.messages[-1]["content"] for item in episode.interactions[1:]] == [
            "The count is 1.",
            "The count is 2.",
        ]


def test_an_environment_that_fails_is_lost_and_no_zero(url, play):
    (episode,) = play(Component("openenv", {"url": f"{url}/guess", **GUESS}), OpenEnvTasks(size=1)(), "crash")
    assert (episode.record.outcome, episode.record.reason) == (Outcome.REJECTED, "environment_lost")
    assert "EXECUTION_ERROR" in episode.record.detail


@pytest.mark.parametrize(
    ("misbehave", "problem"),
    [
        ("close", "ended the session at 'step'"),
        ("hang", "gave no answer to 'step' within 0.5 s"),
        ("not JSON", "ended the session at 'step'"),
        ("[1]", "sent list, expected an object"),
        ('{"type": "state", "data": {}}', "sent no observation"),
        ('{"type": "observation", "data": {"observation": {}, "reward": NaN}}', "sent the reward nan"),
        ('{"type": "observation", "data": {"observation": {}, "reward": "much"}}', "sent an observation that is none"),
        ('{"type": "error", "data": {"code": "CAPACITY_REACHED", "message": "8 of 8"}}', "CAPACITY_REACHED: 8 of 8"),
    ],
)
def test_a_server_that_misbehaves_is_named(server, described, play, misbehave, problem):
    server.misbehave = misbehave
    options = {"url": f"{described}/guess", "timeout_s": 0.5, **GUESS}
    (episode,) = play(Component("openenv", options), OpenEnvTasks(size=1)(), "1")
    assert (episode.record.outcome, episode.record.reason) == (Outcome.REJECTED, "environment_lost")
    assert problem in episode.record.detail
    assert f"OpenEnv server {described}/guess" in episode.record.detail


def test_no_server_is_told_without_its_password(play):
    options = {"url": "http://user:secret@127.0.0.1:9", **GUESS}
    (episode,) = play(Component("openenv", options), OpenEnvTasks(size=1)(), "1")
    assert "OpenEnv server http://127.0.0.1:9 cannot connect" in episode.record.detail
    assert "secret" not in episode.record.detail


def test_sessions_end_with_their_episodes_whatever_happens(server, described, play):
    component = Component("openenv", {"url": f"{described}/guess", **GUESS})
    play(component, OpenEnvTasks(size=1)(), "crash")
    play.rehearsal.engine.silent = True
    play(component, OpenEnvTasks(size=1)(), "1", timeout_s=0.3)
    play.rehearsal.engine.silent = False
    play(component, OpenEnvTasks(size=1, first_seed=1)(), "1")
    assert server.opened == 3


def test_a_row_has_options_of_the_reset(server, described, play):
    row = {"id": "a", "messages": [{"role": "user", "content": "?"}], "reset": {"seed": 1, "level": "hard"}}
    play(Component("openenv", {"url": f"{described}/guess", **GUESS}), [Task(id="a", data=row)], "1")
    assert server.resets == [{"seed": 1, "level": "hard"}]


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"action_field": "text", "observation_field": "text"}, "VALIDATION_ERROR"), ({}, "has no tools")],
)
def test_an_action_that_does_not_fit_the_environment_is_told(described, play, options, problem):
    (episode,) = play(Component("openenv", {"url": f"{described}/guess", **options}), OpenEnvTasks(size=1)(), "1")
    assert episode.record.reason == "environment_lost"
    assert problem in episode.record.detail
