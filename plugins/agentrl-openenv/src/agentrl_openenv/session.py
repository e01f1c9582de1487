"""Session with an OpenEnv server: one WebSocket, on which the server keeps an environment for this episode alone."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import attrs

from agentrl_core.errors import EnvironmentLostError

_LARGEST_BYTES = 16 * 2**20
"""Largest message of a server."""
_CLOSE_S = 2.0
"""Longest time that a server has to confirm the end of a session."""
_SHOWN = 300
"""Characters of a server's error that are shown."""


class RefusedActionError(Exception):
    """The server does not accept an action; the environment goes on as before."""


@attrs.frozen(kw_only=True)
class Observation:
    """Answer of a server to `reset` and `step`."""

    data: Mapping[str, Any]
    """Fields of the environment's own observation."""
    reward: float | None
    done: bool


@attrs.define
class Session:
    """An open session; its methods are called one after the other. All errors of the server name its `url`."""

    url: str
    timeout_s: float
    total: float = 0.0
    """Sum of the rewards since the last `reset`."""
    last: float = 0.0
    """The last reward since then."""
    done: bool = False
    _client: aiohttp.ClientSession = attrs.field(init=False, repr=False)
    _socket: aiohttp.ClientWebSocketResponse = attrs.field(init=False, repr=False)
    _lock: asyncio.Lock = attrs.field(init=False, repr=False, factory=asyncio.Lock)
    _is_unanswered: bool = attrs.field(init=False, repr=False, default=False)
    """Whether nobody has read the answer to the last message: the next answer would be taken for that of another."""

    async def open(self) -> None:
        """Connect; raises `EnvironmentLostError` if there is no server."""
        self._client = aiohttp.ClientSession()
        try:
            async with asyncio.timeout(self.timeout_s):
                self._socket = await self._client.ws_connect(
                    socket_url(self.url),
                    max_msg_size=_LARGEST_BYTES,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S),
                )
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            await self._client.close()
            raise self._lost(f"cannot connect: {error or type(error).__name__}") from error
        except BaseException:
            await self._client.close()
            raise

    async def close(self) -> None:
        """End the session; the server destroys its environment."""
        try:
            await self._socket.close()
            # aiohttp keeps the connection of a WebSocket that the other side has cut.
            self._socket._response.close()  # noqa: SLF001
        finally:
            await self._client.close()

    async def reset(self, **options: Any) -> Observation:
        """Begin an episode; `options` are the environment's own, `seed` among them."""
        self.total, self.last, self.done = 0.0, 0.0, False
        return await self._observe({"type": "reset", "data": options})

    async def step(self, action: Mapping[str, Any]) -> Observation:
        """Act; raises `RefusedActionError` for an action that does not fit the environment."""
        return await self._observe({"type": "step", "data": dict(action)})

    async def state(self) -> Mapping[str, Any]:
        """Return the environment's state."""
        return await self._ask({"type": "state"}, "state")

    async def _observe(self, message: Mapping[str, Any]) -> Observation:
        answer = await self._ask(message, "observation")
        data, reward = answer.get("observation", {}), answer.get("reward")
        if not isinstance(data, dict) or not (reward is None or isinstance(reward, int | float)):
            raise self._lost(f"sent an observation that is none: {json.dumps(answer)[:_SHOWN]}")
        if reward is not None and not math.isfinite(reward):
            raise self._lost(f"sent the reward {reward}")
        found = Observation(data=data, reward=None if reward is None else float(reward), done=bool(answer.get("done")))
        if found.reward is not None:
            self.total += found.reward
            self.last = found.reward
        self.done = found.done
        return found

    async def _ask(self, message: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
        async with self._lock:
            answer = await self._exchange(message)
        data = answer.get("data")
        if answer.get("type") == kind and isinstance(data, dict):
            return data
        if answer.get("type") == "error" and isinstance(data, dict):
            text = f"{data.get('code')}: {' '.join(str(data.get('message')).split())[:_SHOWN]}"
            if data.get("code") == "VALIDATION_ERROR":
                raise RefusedActionError(text)
            raise self._lost(f"answered {text}")
        raise self._lost(f"sent no {kind}, but {json.dumps(answer)[:_SHOWN]}")

    async def _exchange(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._is_unanswered:
            raise self._lost("has not answered an earlier message")
        self._is_unanswered = True
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._socket.send_json(message)
                answer = json.loads(await self._socket.receive_str())
            self._is_unanswered = False
        except TimeoutError as error:
            raise self._lost(f"gave no answer to '{message['type']}' within {self.timeout_s:g} s") from error
        except (aiohttp.ClientError, aiohttp.WSMessageTypeError, OSError, ValueError) as error:
            raise self._lost(f"ended the session at '{message['type']}': {error or type(error).__name__}") from error
        if not isinstance(answer, dict):
            raise self._lost(f"sent {type(answer).__name__}, expected an object")
        return answer

    def _lost(self, text: str) -> EnvironmentLostError:
        return EnvironmentLostError(f"OpenEnv server {shown_url(self.url)} {text}", server="openenv")


def socket_url(url: str) -> str:
    """Return the address of a server's sessions: `ws://…/ws` for `http://…`."""
    parts = urlsplit(url)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    return urlunsplit(parts._replace(scheme=scheme, path=parts.path.rstrip("/").removesuffix("/ws") + "/ws"))


def shown_url(url: str) -> str:
    """Return an address without user, password and query, for messages."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def text_of(observation: Mapping[str, Any], field: str | None = None) -> str:
    """Return an observation as text for the policy: its `field`, or else all of it as JSON, without metadata."""
    if field is not None:
        if field not in observation:
            known = ", ".join(observation)
            raise ValueError(f"the observation has no '{field}', which observation_field names; it has {known}")
        value = observation[field]
    else:
        value = {name: item for name, item in observation.items() if name != "metadata"}
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
