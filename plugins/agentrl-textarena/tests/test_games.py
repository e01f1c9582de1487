"""Games and their tasks: alike for a seed, whatever else draws random numbers."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core.config.component import Component
from agentrl_core.errors import ConfigError
from agentrl_core.plugins.manager import load_registry
from agentrl_testing.datasets import DatasetSuite
from agentrl_testing.plugins import check_plugin
from agentrl_textarena.dataset import TextArenaGames
from agentrl_textarena.game import Game

GAMES = ["FrozenLake-v0", "TowerOfHanoi-v0", "Mastermind-v0", "LightsOut-v0", "2048-v0", "Bandit-v0"]


def test_the_package_is_a_sound_plugin():
    check_plugin("agentrl-textarena")


class TestConformance(DatasetSuite):
    @pytest.fixture
    def dataset(self):
        return TextArenaGames(games=[*GAMES, "TicTacToe-v0", "KuhnPoker-v0"], size=8)


def story(game, moves):
    told = [game.observe()]
    for move in moves:
        if not game.done:
            game.play(told[-1][0], move)
            told.append(game.observe())
    return told, game.done, game.rewards()


@settings(max_examples=12, deadline=None)
@given(
    name=st.sampled_from(GAMES),
    seed=st.integers(0, 99),
    moves=st.lists(
        st.sampled_from(["[up]", "[right]", "[down]", "[A C]", "[1 2 3 4]", "[1 1]", "[red]", "?"]), max_size=6
    ),
)
def test_a_seed_and_moves_make_one_game(name, seed, moves):
    random.seed(1)
    one = story(Game(name, seed=seed, players=1), moves)
    random.seed(2)
    other = Game(name, seed=(seed + 1), players=1)
    before = random.getstate()
    game = Game(name, seed=seed, players=1)
    told = [game.observe()]
    for move in moves:
        if not game.done:
            other.observe()  # a second game at the same time
            game.play(0, move)
            told.append(game.observe())
    assert (told, game.done, game.rewards()) == one
    assert random.getstate() == before


def test_a_player_sees_what_is_new_without_its_own_move():
    game = Game("TowerOfHanoi-v0", seed=0, players=1)
    assert "You are playing Tower of Hanoi" in game.observe()[1]
    game.play(0, "[A C]")
    player, news = game.observe()
    assert player == 0
    assert "C: [1]" in news
    assert "You are playing" not in news
    assert "\n[A C]" not in f"\n{news}"


@pytest.mark.parametrize("name", ["Countdown-v0", "Cryptarithm-v0", "Slitherlink-v0"])
def test_games_that_swap_text_and_kind_of_a_move_go_on(name):
    game = Game(name, seed=0, players=1)
    game.observe()
    for _ in range(2):
        game.play(0, "[1 2 3]")
        if not game.done:
            _, news = game.observe()
            assert news
            assert "PLAYER_ACTION" not in news
            assert "[1 2 3]" not in news.splitlines()


@pytest.mark.parametrize(
    ("raised", "problem"),
    [
        (SyntaxError("invalid syntax"), r"cannot be read by Python 3\.\d+: invalid syntax; use a newer Python"),
        (ImportError("No module named 'gym'"), "No module named 'gym'; install what is missing"),
        (FileNotFoundError(2, "No such file", "base.txt"), r"needs files .* 'base\.txt'; use another game"),
        (ValueError("API key not found"), "cannot be made: API key not found"),
    ],
)
def test_a_game_that_cannot_be_made_here_says_what_helps(monkeypatch, raised, problem):
    import textarena

    def make(*_, **__):
        raise raised

    monkeypatch.setattr(textarena, "make", make)
    with pytest.raises(ValueError, match=f"game 'Bandit-v0'.* {problem}"):
        TextArenaGames(games="Bandit-v0")


def test_the_policy_takes_the_seats_of_two_players_in_turn():
    tasks = TextArenaGames(games="TicTacToe-v0", size=4)()
    assert [task.data["textarena"]["seat"] for task in tasks] == [0, 1, 0, 1]
    assert {task.data["textarena"]["players"] for task in tasks} == {2}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"games": "FrozenLak-v0"}, r"textarena: TextArena has no game 'FrozenLak-v0' \(did you mean FrozenLake-v0"),
        ({"games": {"FrozenLake-v0": {"sise": 3}}}, "game 'FrozenLake-v0' refuses its options: .*sise"),
        ({"games": "SecretMafia-v0"}, "game 'SecretMafia-v0' needs more than 2 players"),
        ({"games": []}, "games"),
        ({"games": "Bandit-v0", "size": 0}, "size"),
    ],
)
def test_bad_options_are_errors_of_the_config(options, problem):
    with pytest.raises(ConfigError, match=problem):
        load_registry().build("datasets", Component("textarena", options), where="config.yaml:3: data.train")
