"""`agentrl serve`: engine and gateway of a run on a socket, with every policy version that its trainer publishes."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.weights import DirectoryWeights
from agentrl_core.concurrency.threads import call_on_thread
from agentrl_core.errors import WeightsError
from agentrl_core.gateway import Gateway
from agentrl_core.gateway.online.admin import key_from_environment, shared_key
from agentrl_core.run.in_process import policy_chat
from agentrl_core.run.roles.frame import MemberProcess
from agentrl_core.run.roles.waiting import LOOK_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.api.engines import Engine
    from agentrl_core.api.members import Member
    from agentrl_core.run.components import RunComponents
    from agentrl_core.run.roles.frame import Joined
    from agentrl_core.weights.place import WeightsPlace

logger = logging.getLogger(__name__)

_ANY = {"0.0.0.0": "", "::": ""}  # noqa: S104  # addresses to listen on, which nobody can call
_END_S = 15.0


class Server:
    """Engine and gateway of one serving member, with the versions of the weights that it loads."""

    def __init__(self, joined: Joined, place: WeightsPlace) -> None:
        self._joined, self._components, self._place = joined, joined.components, place
        self._loop, self._store, self._run_id = joined.loop, joined.store, joined.run_id
        self._refused: dict[int, str] = {}
        self.engine: Engine
        self.gateway: Gateway
        with ExitStack() as undo:
            self._loop.run(self._start(undo), asked_to_stop=joined.asked_to_stop)
            self._undo = undo.pop_all()

    @property
    def url(self) -> str:
        """Address at which samplers, and the agents that they run, reach the gateway."""
        config = self._components.config.gateway
        if config.public_url is not None:
            return config.public_url
        # Who listens on all addresses is reached by the name of the machine.
        return self.gateway.url.replace(f"//{config.host}:", f"//{socket.gethostname()}:", 1) if (
            config.host in _ANY
        ) else self.gateway.url
