"""The workflow `textarena`: the policy plays a game to its end; the reward is that of the game."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from agentrl_core.api.completions import ask
from agentrl_core.api.options import resolve
from agentrl_core.errors import EnvironmentLostError, RequestError
from agentrl_textarena.game import Game, GameError

if TYPE_CHECKING:
    import httpx2

Opponent: TypeAlias = "Callable[[str], str | Awaitable[str]]"
"""Function of what is new to a player that returns its move; it may be async."""
SELF = "self"


class TextArenaWorkflow:
    """Plays games of the data set `textarena`.

    `opponent`: player of the other seat in games of two. `self`: the policy, in a conversation of its own, and each
    seat trains with its own reward. Otherwise `file.py:function` or `module:function`, a fixed player: a function of
    what is new since its last turn that returns its move. Games of one player need none.
    `system_prompt`: text before everything else. `max_turns`: largest number of the policy's replies per seat.
    `unfinished_reward`: reward of a game that has not ended by then, or whose conversation has filled the context.
    """

    def __init__(
        self,
        *,
        opponent: str | None = None,
        system_prompt: str = "",
        max_turns: int = 30,
        unfinished_reward: float = 0.0,
    ) -> None:
        if max_turns < 1:
            raise ValueError("max_turns: expected a number of at least 1")
        self._opponent = opponent
        self._system_prompt, self._max_turns, self._unfinished = system_prompt, max_turns, unfinished_reward
        self._fixed: Opponent | None = None
        if opponent is not None and opponent != SELF:
            self._fixed = resolve(opponent, (Path.cwd(),)).value  # type: ignore[assignment]

    async def run(
        self, data: Mapping[str, Any], *, base_url: str, api_key: str, http_client: httpx2.AsyncClient
    ) -> float | dict[str, float]:
        """Play one game. Raises `EnvironmentLostError` if the game itself fails."""
        row = data["textarena"]
        if row["players"] > 1 and self._opponent is None:
            raise ValueError(f"game '{row['game']}' has two players: set `opponent` of the workflow textarena")
        seats = _Seats(base_url, api_key, http_client, self._system_prompt)
        try:
            game = Game(row["game"], seed=row["seed"], players=row["players"], options=row["options"])
            await self._play(game, row, seats)
        except GameError as error:
            raise EnvironmentLostError(f"game '{row['game']}': {error}", server="textarena") from error
        rewards = game.rewards() if game.done else None
        given = {player: self._unfinished if rewards is None else rewards[player] for player in seats.last}
        if len(given) == 1:
            return next(iter(given.values()))
        return {seats.last[player]: reward for player, reward in given.items()}

    async def _play(self, game: Game, row: Mapping[str, Any], seats: _Seats) -> None:
        turns = 0
        while not game.done and turns < self._max_turns * row["players"]:
            turns += 1
            player, news = game.observe()
            if self._fixed is not None and player != row["seat"]:
                move = self._fixed(news)
                move = await move if inspect.isawaitable(move) else move
            else:
                found = await seats.ask(player, news)
                if found is None:
                    return
                move = found
            game.play(player, move)


class _Seats:
    """Conversations of the policy, one for each seat that it plays."""

    def __init__(self, base_url: str, api_key: str, http_client: httpx2.AsyncClient, system_prompt: str) -> None:
        self._base_url, self._api_key, self._http = base_url, api_key, http_client
        self._system = [{"role": "system", "content": system_prompt}] if system_prompt else []
        self._messages: dict[int, list[dict[str, Any]]] = {}
        self.last: dict[int, str] = {}
        """Player -> id of the policy's last reply for it."""

    async def ask(self, player: int, news: str) -> str | None:
        """Return the policy's move; None if the conversation leaves no room for one."""
        messages = self._messages.setdefault(player, list(self._system))
        messages.append({"role": "user", "content": news or "Your turn."})
        try:
            found = await ask(self._http, self._base_url, self._api_key, messages, {})
        except RequestError as error:
            if error.code != "context_length_exceeded":
                raise
            return None
        self.last[player] = found["id"]
        reply = {name: value for name, value in found["choices"][0]["message"].items() if value is not None}
        messages.append(reply)
        return str(reply.get("content") or "")
