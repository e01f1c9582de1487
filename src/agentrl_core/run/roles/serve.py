"""`agentrl serve`: engine and gateway of a run on a socket, with every policy version that its trainer publishes."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.engines import Provable
from agentrl_core.api.weights import DirectoryWeights
from agentrl_core.concurrency.threads import call_on_thread
from agentrl_core.errors import WeightsError
from agentrl_core.gateway import Gateway
from agentrl_core.gateway.online.admin import key_from_environment, shared_key
from agentrl_core.run.engine_start import start_engine
from agentrl_core.run.in_process import context_policy, policy_chat
from agentrl_core.run.publication import prepare_weights
from agentrl_core.run.roles.frame import take_part
from agentrl_core.run.roles.joining import local_weights, weights_place
from agentrl_core.run.roles.waiting import LOOK_S, Wait
from agentrl_core.weights.local_copies import LocalCopies

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from agentrl_core.api.engines import Engine
    from agentrl_core.api.members import Member
    from agentrl_core.api.weights import Publication
    from agentrl_core.run.membership import Membership
    from agentrl_core.run.roles.frame import Joining

logger = logging.getLogger(__name__)

_ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104  # to listen on; nobody can call them


def serve(
    config: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    name: str = "",
    notice: Callable[[str], None] = logger.info,
) -> None:
    """Serve the policy of a run until the run has ended; see `frame.take_part` for the errors."""
    take_part("serve", config, overrides, name, Server, notice)


class Server:
    """Engine and gateway of one serving member, and the versions of the weights that it loads.

    The constructor waits for the first version. A version that is damaged is refused: the server goes on with its own,
    tells the trainer, and loads the next one.

    The report has a `version` once the newest one is loaded after this member has joined, and samplers use the server
    from then on. The trainer waits for its members before it admits a version, so no episode gets older weights than
    those that are admitted.
    """

    def __init__(self, joining: Joining) -> None:
        self._joining, self._loop = joining, joining.loop
        self._config, self._store, self._run_id = joining.components.config, joining.store, joining.directory.name
        self._place = weights_place(joining.components, joining.directory, joining.identity)
        self._copies = LocalCopies(self._place, local_weights(joining.components), notice=joining.notice)
        self._publication: Publication | None = None
        self._refused: dict[int, str] = {}
        self._samplers: set[str] = set()
        self._is_current = False
        with ExitStack() as undo:
            undo.callback(self._copies.close)
            with ExitStack() as held:
                version, folder = self._loop.run(self._first_version(held), asked_to_stop=joining.asked_to_stop)
                # A folder for each member: several may serve the run from one machine.
                logs = joining.directory.logs / joining.member.name
                self._engine: Engine = start_engine(joining.components, folder, undo, log_dir=logs)
                # An engine that loads its model has version 0.
                if version:
                    self._publication = self._loop.run(self._engine.load_weights(version, DirectoryWeights(folder)))
                elif isinstance(self._engine, Provable):
                    self._loop.run(self._engine.prove(DirectoryWeights(folder)))
                self._gateway = Gateway(
                    engine=self._engine,
                    chat=policy_chat(joining.components, folder),
                    store=self._store,
                    run_id=self._run_id,
                    sampling=self._config.sampling,
                    config=self._config.gateway,
                    seed=self._config.seed,
                    admin_key=key_from_environment(self._config.gateway.admin_key_env)
                    or shared_key(joining.directory.admin_key),
                    context=context_policy(joining.components),
                )
            undo.callback(self._gateway.close)
            self._loop.run(self._gateway.restore_sessions())
            self._gateway.start()
            self._undo = undo.pop_all()
        joining.notice(f"serving version {version} at {self._gateway.url}")

    @property
    def url(self) -> str:
        """Address at which samplers, and the agents that they run, reach the gateway."""
        host, url = self._config.gateway.host, self._gateway.url
        if self._config.gateway.public_url is not None:
            return self._config.gateway.public_url
        return f"http://{socket.gethostname()}:{url.rpartition(':')[2]}" if host in _ALL_ADDRESSES else url

    def begin(self, membership: Membership) -> None:
        """Do nothing more: the gateway serves from its start on."""

    def report(self) -> Mapping[str, Any]:
        """Return version, counts, and what the trainer tells its user about engine and chat template."""
        gateway = self._gateway
        refused = max(self._refused, default=None)
        return {
            **({"version": self._engine.version} if self._is_current else {}),
            **({} if self._publication is None else {"publication": _told(self._publication)}),
            "max_tokens": gateway.max_tokens,
            "takes_tools": gateway.chat.takes_tools,
            "takes_images": gateway.takes_images,
            "notices": [
                line
                for line in (
                    getattr(self._engine, "notice", ""),
                    *gateway.notices(offers_tools=bool(self._config.tools.servers)),
                )
                if line
            ],
            "calls": {"llm": gateway.calls, "unseen_tools": gateway.calls_with_unseen_tools},
            "cpu_ms": {
                "gateway": round(1000 * gateway.cpu_seconds),
                "engine": round(1000 * self._engine.cpu_seconds),
            },
            **({} if refused is None else {"refused": {"version": refused, "error": self._refused[refused]}}),
        }

    async def look(self, members: Sequence[Member]) -> bool:
        """Load a newer version if there is one, and close the sessions of samplers that are gone."""
        if self._gateway.fatal is not None:
            raise self._gateway.fatal
        samplers = {member.id for member in members if member.role == "sample"}
        for gone in self._samplers - samplers:
            await self._gateway.close_sessions_of(gone)
        self._samplers = samplers
        version = await self._newest(above=self._engine.version)
        if version is not None:
            return await self._load(version)
        if self._is_current or max(self._refused, default=-1) > self._engine.version:
            return False
        self._is_current = True
        return True

    def finish(self) -> None:
        """Do nothing: calls are served until the samplers have heard that this member has left."""

    def close(self) -> None:
        """Abort calls that still run, and close gateway and engine."""
        self._undo.close()

    async def _first_version(self, held: ExitStack) -> tuple[int, Path]:
        """Wait for a version that can be loaded; return it with its folder, which stays as long as `held` is open."""
        wait = Wait(self._joining.notice, self._config.roles.wait_s)
        while True:
            if (version := await self._newest(above=-1)) is not None:
                try:
                    return version, await self._read(version, held)
                except WeightsError as error:
                    self._refuse(version, error)
            await self._joining.end.look(await self._store.members(self._run_id, live=True))
            wait.on(
                f"the trainer's weights in {self._place.root}",
                "see that the trainer runs, and that both have the same weights.place",
            )
            await asyncio.sleep(LOOK_S)

    async def _newest(self, *, above: int) -> int | None:
        """Return the newest loadable version above `above` that the store knows; None if there is none."""
        found = next((version for version in self._place.versions() if version not in self._refused), -1)
        if found <= above:
            return None
        # The trainer announces a version before it publishes it. One that it has not announced is of another run.
        return found if found <= await self._store.last_version(self._run_id) else None

    async def _read(self, version: int, held: ExitStack) -> Path:
        """Verify a version, which may take minutes, and keep it as long as `held` is open; return its folder."""
        return await call_on_thread(lambda: held.enter_context(self._copies.reading(version)), name="weights")

    async def _load(self, version: int) -> bool:
        """Load a version with the gateway paused; running replies go on with the new weights."""
        try:
            with ExitStack() as held:
                source = DirectoryWeights(await self._read(version, held))
                await prepare_weights(self._engine, version, source)
                with self._gateway.paused():
                    self._publication = await self._engine.load_weights(version, source)
        except WeightsError as error:
            self._refuse(version, error)
        else:
            logger.info("version %d is loaded", version)
        return True

    def _refuse(self, version: int, error: WeightsError) -> None:
        self._refused[version] = str(error)
        logger.error("%s", error)
        self._joining.notice(f"{error}; waiting for the next version")


def _told(publication: Publication) -> dict[str, Any]:
    """Return what the trainer shows of a publication; None is left out, as stores may not keep it."""
    return {name: value for name, value in attrs.asdict(publication).items() if value is not None}
