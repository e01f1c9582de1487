"""`agentrl sample`: claims groups of a run and runs their episodes on its servers, without torch."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

from agentrl_core import config as configs
from agentrl_core.api.trackers import RunInfo
from agentrl_core.concurrency.processes import close_workers
from agentrl_core.errors import ConfigError
from agentrl_core.gateway.online.admin import key_from_environment, read_key
from agentrl_core.http.borrowed_clients import close_borrowed
from agentrl_core.rollout.remote import RemoteGateway
from agentrl_core.rollout.subproc.inside.share_tls_context import shared_tls
from agentrl_core.run.in_process import policy_chat
from agentrl_core.run.roles.frame import take_part
from agentrl_core.run.roles.waiting import LOOK_S, Wait
from agentrl_core.run.scheduling import END_S, build_scheduler, until_ended
from agentrl_core.run.tools import start_tools

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from agentrl_core.api.members import Member
    from agentrl_core.rollout.episode_source import EpisodeSource
    from agentrl_core.run.membership import Membership
    from agentrl_core.run.roles.frame import Joining
    from agentrl_core.types import Record

logger = logging.getLogger(__name__)

_FOREVER_S = 1e9


def sample(
    config: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    name: str = "",
    notice: Callable[[str], None] = logger.info,
) -> None:
    """Sample episodes of a run until the run has ended; see `frame.take_part` for the errors."""
    take_part("sample", config, overrides, name, Sampler, notice)


class Sampler:
    """Scheduler and agents of one sampling member, whose LLM calls go to the run's serving members.

    The constructor waits for the first server.
    """

    url = ""

    def __init__(self, joining: Joining) -> None:
        config, components = joining.components.config, joining.components
        self._loop, self._version = joining.loop, 0
        self._store, self._run_id = joining.store, joining.directory.name
        source = cast("EpisodeSource", components.workflow)  # only agents that run elsewhere have none
        if source.notice:
            joining.notice(source.notice)
        with ExitStack() as undo:
            undo.enter_context(shared_tls())
            undo.callback(close_workers)
            tools = start_tools(components, self._loop, undo, joining.asked_to_stop)
            first = self._loop.run(first_servers(joining), asked_to_stop=joining.asked_to_stop)
            self._gateway = RemoteGateway(
                run_id=joining.directory.name,
                member_id=joining.member.id,
                admin_key=_admin_key(joining),
                patience_s=_FOREVER_S if config.roles.wait_s is None else config.roles.wait_s,
                chat_of=lambda folder: policy_chat(components, folder),
            )
            undo.callback(self._close_clients)
            self._loop.run(self._use(first))
            undo.callback(self._close_source, source)
            self._scheduler = build_scheduler(
                components,
                store=joining.store,
                run_id=joining.directory.name,
                member_id=joining.member.id,
                source=source,
                gateway=self._gateway,
                tools=tools,
                version=lambda: self._version,
                poll_s=LOOK_S,
                refresh=self._refresh,
                on_scored=self._on_scored(joining),
            )
            self._undo = undo.pop_all()
        self._scheduling: asyncio.Task[None] | None = None

    def begin(self, membership: Membership) -> None:
        """Begin to claim groups."""
        membership.on_control(self._scheduler.obey)
        membership.on_lost(self._scheduler.stop)
        self._scheduling = self._loop.start(self._scheduler.run())

    def report(self) -> Mapping[str, Any]:
        """Return what has ended here so far, by outcome."""
        counts = self._scheduler.counts
        return {
            "running": self._scheduler.running,
            "outcomes": dict(counts.records.totals),
            "groups": dict(counts.groups.totals),
            "answers": dict(counts.answers.totals),
            "tools": dict(self._scheduler.tool_calls.totals),
            "cpu_ms": {"agent": round(1000 * time.process_time())},
            "idle_ms": {"sampler": round(1000 * self._scheduler.idle_s)},
            "waits_for": self._gateway.waits_for,
        }

    async def look(self, members: Sequence[Member]) -> bool:
        """Use the servers that are live now; raise the error that has ended the scheduler."""
        await self._use(members)
        if self._scheduling is not None and self._scheduling.done():
            await self._scheduling
        return False

    def finish(self) -> None:
        """Cancel the running episodes and release their groups, so that other samplers take them over."""
        self._scheduler.stop()
        if self._scheduling is not None:
            self._loop.try_run(until_ended(self._scheduling), "ending the episodes", limit_s=END_S)

    def close(self) -> None:
        """Close the agents and their connections."""
        self._undo.close()

    async def _refresh(self) -> None:
        await self._use(await self._store.members(self._run_id, live=True))

    async def _use(self, members: Sequence[Member]) -> None:
        servers = [member for member in members if _serves(member)]
        self._gateway.update(servers)
        self._version = min((int(server.report["version"]) for server in servers), default=self._version)

    def _on_scored(self, joining: Joining) -> Callable[[Record], None]:
        """Return the function that tells the plugins of this process about a scored record."""
        run = RunInfo(
            name=joining.directory.name,
            directory=str(joining.directory.path),
            config=configs.dump_without_passwords(joining.components.config),
            components=dict(joining.components.used),
        )
        notify = joining.components.registry.hooks.notify
        return lambda record: notify("record_scored", run=run, record=record)

    def _close_source(self, source: EpisodeSource) -> None:
        self._loop.try_run(source.close(), "ending the agents", limit_s=END_S)

    def _close_clients(self) -> None:
        for closing in (self._gateway.close(), close_borrowed()):
            self._loop.try_run(closing, "closing the agents' HTTP clients", limit_s=END_S)


async def first_servers(joining: Joining) -> Sequence[Member]:
    """Wait until a server is live, and return the live members of the run then."""
    wait = Wait(joining.notice, joining.components.config.roles.wait_s)
    while True:
        members = await joining.store.members(joining.directory.name, live=True)
        if any(map(_serves, members)):
            return members
        await joining.end.look(members)
        wait.on("a server", f"start one with `{joining.command('serve')}`")
        await asyncio.sleep(LOOK_S)


def _serves(member: Member) -> bool:
    """Return whether a live member is a server that has every version which it needs, see `serve.Server`."""
    return member.role == "serve" and "version" in member.report


def _admin_key(joining: Joining) -> str:
    """Return the key with which sessions are opened at the servers.

    `ConfigError` if neither the environment nor the run's folder has it.
    """
    variable, file = joining.components.config.gateway.admin_key_env, joining.directory.admin_key
    key = key_from_environment(variable) or read_key(file)
    if key is None:
        raise ConfigError(
            f"the admin key of the run's servers is neither in the environment variable {variable} nor, readable by "
            f"this user alone, in {file}; set {variable} to the same key for all servers and samplers"
        )
    return key
