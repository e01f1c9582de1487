"""The agents that need no Python of a user's."""

import pytest

from agentrl_core.config.component import Component
from agentrl_core.errors import ConfigError
from agentrl_core.plugins.builtins import register_workflows
from agentrl_core.rollout.ready_made.turns import FEEDBACK, MultiTurn, SingleTurn


def right(answer, reference):
    return float(answer == reference)


async def nearly(answer, reference):
    return 0.5 if answer == reference else 0.0


def test_a_single_turn_is_judged_by_the_tasks_scorer(play, engine):
    engine.replies = ["<answer>4</answer>"]
    episode = play(SingleTurn(), scorer=right, answer="4")
    assert (episode.record.reward, len(episode.interactions)) == (1.0, 1)


def test_a_row_may_have_a_query_in_place_of_messages(play):
    (call,) = play(
        SingleTurn(system="Be brief."), {"messages": None, "query": "2+2?"}, scorer=right, answer="4"
    ).interactions
    assert [message["content"] for message in call.messages] == ["Be brief.", "2+2?"]


@pytest.mark.parametrize(
    ("replies", "calls", "reward"), [(["4"], 1, 1.0), (["3", "4"], 2, 1.0), (["3", "5", "6"], 3, 0.0)]
)
def test_many_turns_ask_again_until_the_scorer_says_it_is_right(play, engine, replies, calls, reward):
    engine.replies = [f"<answer>{reply}</answer>" for reply in replies]
    episode = play(MultiTurn(), scorer=right, answer="4")
    assert (episode.record.reward, len(episode.interactions)) == (reward, calls)
    for earlier, later in zip(episode.interactions, episode.interactions[1:], strict=False):
        assert later.parent == earlier.id
        assert later.messages[0] == {"role": "user", "content": FEEDBACK}


def test_options_bound_the_turns_and_say_what_is_right(play, engine):
    options = {"max_turns": 2, "feedback": "no", "right_at": 0.5, "system": "Think."}
    engine.replies = ["3", "<answer>4</answer>"]
    episode = play(MultiTurn, scorer=nearly, answer="4", options=options)
    assert (episode.record.reward, len(episode.interactions)) == (0.5, 2)
    assert episode.interactions[1].messages[0]["content"] == "no"
    for wrong in ({"max_turns": 0}, {"max_turnz": 2}, {"reward_fn": 3}):
        with pytest.raises(ConfigError, match=next(iter(wrong))[:8]):
            play(MultiTurn, options=wrong)


def test_a_reward_function_takes_the_scorers_place(play, engine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_reward.py").write_text("def right(answer, reference): return answer == reference\n")
    for reward_fn, reward in ((right, 1.0), (nearly, 0.5), ("own_reward.py:right", 1.0)):
        engine.replies = ["3", "<answer>4</answer>"]
        workflow = MultiTurn(reward_fn=reward_fn, right_at=0.5)
        episode = play(workflow, {"answer": "4"})
        assert (episode.record.reward, len(episode.interactions)) == (reward, 2), episode.record.detail


def test_they_are_registered_by_name():
    found = {}
    register_workflows(lambda name, path, *, summary: found.update({name: Component(path)}))
    assert found == {
        "single_turn": Component("agentrl_core.rollout.ready_made.turns:SingleTurn"),
        "multi_turn": Component("agentrl_core.rollout.ready_made.turns:MultiTurn"),
    }
