"""Episodes of games against the real gateway."""

import re
import sys
from pathlib import Path

import pytest

from agentrl_core.config import load
from agentrl_core.config.component import Component
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.run.checks import check_config
from agentrl_core.types import Outcome
from agentrl_testing.workflows import Rehearsal
from agentrl_textarena import game as game_module
from agentrl_textarena.dataset import TextArenaGames

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def play(tmp_path):
    """A function that plays an episode; the policy's replies follow from the prompt."""
    started = []

    def played(task, policy, **options):
        rehearsal = Rehearsal(tmp_path / str(len(started)), policy)
        started.append(rehearsal)
        component = Component("textarena", options)
        workflow = resolve_workflow(component, registry=load_registry(), base_dir=tmp_path, where="workflow")
        return rehearsal.play(workflow, [task], timeout_s=60.0)[0]

    yield played
    for rehearsal in started:
        rehearsal.close()


def turns(prompt):
    return prompt.count("<|im_start|>assistant\n") - 1


def test_a_game_of_one_player_gives_its_reward(play):
    hanoi = ["[A C]", "[A B]", "[C B]", "[A C]", "[B A]", "[B C]", "[A C]"]
    (task,) = TextArenaGames(games="TowerOfHanoi-v0", size=1)()
    episode = play(task, lambda prompt: hanoi[turns(prompt)], system_prompt="You play.")
    assert (episode.record.outcome, episode.record.reward) == (Outcome.SCORED, 1.0), episode.record.detail
    assert [item.parent for item in episode.interactions] == [None, *(item.id for item in episode.interactions[:-1])]
    assert episode.interactions[0].messages[0]["content"] == "You play."
    assert episode.interactions[0].messages[1]["content"] == task.data["messages"][0]["content"]


def test_a_game_that_has_not_ended_has_the_reward_of_the_config(play):
    (task,) = TextArenaGames(games="TowerOfHanoi-v0", size=1)()
    moves = ["[A C]", "[C A]"]
    episode = play(task, lambda prompt: moves[turns(prompt) % 2], max_turns=4, unfinished_reward=-0.5)
    assert (episode.record.reward, len(episode.interactions)) == (-0.5, 4)


def test_both_seats_of_self_play_have_their_own_conversation_and_reward(play):
    (task,) = TextArenaGames(games="TicTacToe-v0", size=1)()
    first, second = ["[0]", "[1]", "[2]"], ["[3]", "[4]"]
    episode = play(
        task, lambda prompt: (first if "You are Player 0" in prompt else second)[turns(prompt)], opponent="self"
    )
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    winner, loser = episode.interactions[-1], episode.interactions[-2]
    assert episode.record.rewards == {winner.id: 1.0, loser.id: -1.0}
    assert sum(item.parent is None for item in episode.interactions) == 2


def test_a_fixed_opponent_takes_the_other_seat(play, tmp_path, monkeypatch):
    (block,) = (text for text in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "def perfect" in text)
    (tmp_path / "my_players.py").write_text(block, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    _, task = TextArenaGames(games="TicTacToe-v0", size=2)()
    moves = ["[0]", "[1]", "[2]", "[3]", "[5]", "[6]", "[7]", "[8]"]

    def policy(prompt):
        return next(move for move in moves if f"'{move}'" in prompt.rpartition("Available Moves")[2])

    episode = play(task, policy, opponent="my_players.py:perfect")
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    assert episode.record.reward in (-1.0, 0.0, 1.0)
    assert "You are Player 1" in episode.interactions[0].messages[0]["content"]


def test_a_game_of_two_without_an_opponent_is_refused(play):
    (task,) = TextArenaGames(games="TicTacToe-v0", size=1)()
    record = play(task, lambda _: "[4]").record
    assert record.outcome is Outcome.FAILED
    assert "has two players: set `opponent`" in record.detail


def test_a_game_that_fails_is_lost_and_no_zero(play, monkeypatch):
    (task,) = TextArenaGames(games="Bandit-v0", size=1)()
    make = game_module._make

    def broken(name, options):
        env = make(name, options)
        env.step = None
        return env

    monkeypatch.setattr(game_module, "_make", broken)
    record = play(task, lambda _: "[red]").record
    assert (record.outcome, record.reason) == (Outcome.REJECTED, "environment_lost")
    assert "game 'Bandit-v0': the move '[red]' made the game fail: TypeError" in record.detail


def test_the_configs_of_the_readme_are_valid_but_for_their_models(tmp_path):
    for text in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL):
        (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
        problems = check_config(load(tmp_path / "config.yaml"))[0]
        assert [item for item in problems if "model.path" not in item and "demos.jsonl" not in item] == []
