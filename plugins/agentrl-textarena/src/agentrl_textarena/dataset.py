"""The data set `textarena`: one task for each seed of the games."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from attrs import field, validators

from agentrl_core import Task
from agentrl_textarena.game import Game, players_of


@attrs.frozen(kw_only=True)
class TextArenaGames:
    """Make tasks of games with one or two players, the games in turn, each task with a seed of its own."""

    games: str | Sequence[str] | Mapping[str, Mapping[str, Any]] = field(validator=validators.min_len(1))
    """Name of a game, such as `FrozenLake-v0`, or a list of names, or a section `{NAME: {OPTION: …}}`."""
    size: int = field(default=500, validator=validators.gt(0))
    """Number of tasks."""
    first_seed: int = field(default=0, validator=validators.ge(0))
    """Seed of the first task; the others follow. Tasks to evaluate on need seeds behind those to train on."""

    def __attrs_post_init__(self) -> None:
        for name, options in self._options.items():
            players_of(name, options)

    @property
    def _options(self) -> Mapping[str, Mapping[str, Any]]:
        if isinstance(self.games, Mapping):
            return self.games
        return {name: {} for name in ([self.games] if isinstance(self.games, str) else self.games)}

    def __call__(self) -> list[Task]:
        """Return the tasks; each row has the game's first observation as its message."""
        parts = [(name, options, players_of(name, options)) for name, options in self._options.items()]
        return [
            self._task(*parts[index % len(parts)], seed=self.first_seed + index) for index in range(self.size)
        ]  # fmt: skip

    @staticmethod
    def _task(name: str, options: Mapping[str, Any], players: int, *, seed: int) -> Task:
        # With two players, the policy takes each seat in turn.
        seat = seed % players
        _, first = Game(name, seed=seed, players=players, options=options).observe()
        task_id = f"{name}-{seed}"
        data = {
            "id": task_id,
            "messages": [{"role": "user", "content": first or name}],
            "textarena": {"game": name, "seed": seed, "players": players, "seat": seat, "options": dict(options)},
        }
        return Task(id=task_id, data=data)
