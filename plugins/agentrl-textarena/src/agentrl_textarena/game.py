"""One game of TextArena, with random numbers of its own."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl_core.api.options import did_you_mean

_RAW = "-raw"
"""Ending of the variants without wrappers, whose observations are what is new since the player's last turn."""
_LOCK = threading.Lock()
_MOST_PLAYERS = 2


class GameError(Exception):
    """The game itself failed, not the player."""


class _CannotBeMadeError(ValueError):
    """No number of players helps: there is no such game, or it lacks data, or refuses its options."""


class Game:
    """A game in progress; the same name, seed, options and moves lead to the same game.

    TextArena draws from Python's global random numbers, in some games at each step. So every call runs with the state
    of this game, and puts the global state back.
    """

    def __init__(self, name: str, *, seed: int, players: int, options: Mapping[str, Any] | None = None) -> None:
        """Start the game.

        Raises `ValueError` for a name, options or a number of players that TextArena refuses.
        """
        self._random = random.Random(seed).getstate()  # noqa: S311  (a game)
        self._moves: dict[int, str] = {}
        with self._own_random(), _told(name):
            self._env = _make(name, options or {})
            try:
                self._env.reset(num_players=players, seed=seed)
            except (AssertionError, ValueError, TypeError, KeyError) as error:
                raise ValueError(f"game '{name}' does not start with {players} player(s): {error}") from error
        self.done = False

    def observe(self) -> tuple[int, str]:
        """Return whose turn it is, and what is new for that player."""
        with self._own_random():
            player, parts = self._env.get_observation()
        own = self._moves.get(player)
        found = [_read(*part) for part in parts]
        return player, "\n".join(text for text, kind in found if not (kind == "PLAYER_ACTION" and text == own))

    def play(self, player: int, move: str) -> None:
        """Make a move."""
        self._moves[player] = move
        try:
            with self._own_random():
                self.done, _ = self._env.step(action=move)
        except Exception as error:
            raise GameError(f"the move {move!r:.80} made the game fail: {type(error).__name__}: {error}") from error

    def rewards(self) -> Mapping[int, float] | None:
        """Return the reward of each player; None for a game that has not ended."""
        found = self._env.state.rewards
        return None if found is None else {int(player): float(value) for player, value in found.items()}

    @contextlib.contextmanager
    def _own_random(self) -> Iterator[None]:
        with _LOCK:
            outer = random.getstate()
            random.setstate(self._random)
            try:
                yield
            finally:
                self._random = random.getstate()
                random.setstate(outer)


def players_of(name: str, options: Mapping[str, Any]) -> int:
    """Return the number of players of a game: 1 or 2; `ValueError` for a game that needs more."""
    refused = None
    for players in range(1, _MOST_PLAYERS + 1):
        try:
            game = Game(name, seed=0, players=players, options=options)
            game.observe()
        except _CannotBeMadeError:
            raise
        except (ValueError, KeyError, IndexError, AssertionError) as error:
            refused = error
        else:
            return players
    raise ValueError(f"game '{name}' needs more than {_MOST_PLAYERS} players, or cannot start: {refused}")


def _read(sender: Any, text: Any, kind: Any) -> tuple[str, str]:
    """Return text and kind of an observation."""
    if isinstance(kind, str):
        # Countdown, Cryptarithm and Slitherlink add the player's own move with its parts in another order.
        text, kind = kind, sender
    return str(text), kind.name


@contextlib.contextmanager
def _told(name: str) -> Iterator[None]:
    """Raise what the code of a game lacks here as `ValueError` with a remedy."""
    try:
        yield
    except SyntaxError as error:
        version = ".".join(map(str, sys.version_info[:2]))
        raise _CannotBeMadeError(
            f"game '{name}' cannot be read by Python {version}: {error}; use a newer Python, or another game"
        ) from error
    except ImportError as error:
        raise _CannotBeMadeError(f"game '{name}': {error}; install what is missing, or use another game") from error
    except FileNotFoundError as error:
        raise _CannotBeMadeError(
            f"game '{name}' needs files that TextArena was installed without: {error}; use another game, or TextArena "
            "from its sources"
        ) from error


def _make(name: str, options: Mapping[str, Any]) -> Any:
    import textarena
    from textarena.envs.registration import ENV_REGISTRY

    wanted = name if name + _RAW not in ENV_REGISTRY else name + _RAW
    if wanted not in ENV_REGISTRY:
        raise _CannotBeMadeError(f"TextArena has no game '{name}'{did_you_mean(name, ENV_REGISTRY)}")
    try:
        return textarena.make(wanted, **options)
    except LookupError as error:  # of nltk
        raise _CannotBeMadeError(
            f"game '{name}' needs data of nltk, which it cannot download here; fix: python -m nltk.downloader words "
            "averaged_perceptron_tagger_eng"
        ) from error
    except (TypeError, AssertionError) as error:
        raise _CannotBeMadeError(f"game '{name}' refuses its options: {error}") from error
    except ValueError as error:  # the key of a model that plays a part
        raise _CannotBeMadeError(f"game '{name}' cannot be made: {error}") from error
