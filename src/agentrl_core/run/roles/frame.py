"""Frame around a server or a sampler: find the run, agree with it, join it, stay until it ends, and leave in order."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import attrs

from agentrl_core import config as configs
from agentrl_core.concurrency.threads import call_on_thread
from agentrl_core.errors import AgentRLError, RunError
from agentrl_core.run.components import resolve
from agentrl_core.run.interruption import Interruption
from agentrl_core.run.membership import Membership
from agentrl_core.run.roles.agreement import check_agreement, new_member
from agentrl_core.run.roles.joining import Commands, RunEnd, RunOver, find_run, run_directory
from agentrl_core.run.roles.rejoining import rejoining
from agentrl_core.run.roles.waiting import LOOK_S, Wait
from agentrl_core.run.threads import LoopThread

if TYPE_CHECKING:
    import os

    from agentrl_core.api.members import Member, Role
    from agentrl_core.api.stores import Store
    from agentrl_core.run.components import RunComponents
    from agentrl_core.run.directory import RunDirectory

logger = logging.getLogger(__name__)

_TELL_S = 1.0
"""Seconds between two reports of counts; a report of something that others wait for is told at once."""


@attrs.frozen(kw_only=True)
class Joining:
    """Everything that a member's own work is built from."""

    components: RunComponents
    directory: RunDirectory
    store: Store
    member: Member
    """The member as it will join; a server adds its address."""
    identity: str
    loop: LoopThread
    """Event loop of the member, on its own thread."""
    notice: Callable[[str], None]
    asked_to_stop: Callable[[], None]
    command: Commands
    end: RunEnd


class Work(Protocol):
    """Work of one member, between joining and leaving."""

    @property
    def url(self) -> str:
        """Address for other members; empty for a sampler."""
        ...

    def begin(self, membership: Membership) -> None:
        """Begin to work as a member, which has just joined."""
        ...

    def report(self) -> Mapping[str, Any]:
        """Return what the others may read of this member; called on another thread."""
        ...

    async def look(self, members: Sequence[Member]) -> bool:
        """Do what the live members ask for, on the event loop; return whether others wait to hear of it."""
        ...

    def finish(self) -> None:
        """End what a member alone may do, such as its episodes; it leaves after this."""
        ...

    def close(self) -> None:
        """Close everything; the member has left."""
        ...


def take_part(
    role: Role,
    config: str | os.PathLike[str],
    overrides: Sequence[str],
    name: str,
    build: Callable[[Joining], Work],
    notice: Callable[[str], None],
) -> None:
    """Take part in a run as a server or a sampler; block until the run has ended.

    Raises `UsageError` for a config that cannot work, `MemberError` if it differs from the run's, and `RunError` if the
    run fails, or does not begin or has no trainer for longer than `roles.wait_s`. A run that is finished ends it at
    once. After Ctrl-C or SIGTERM the member gives back its work and leaves.

    A process that was declared lost, for example because its machine was suspended, begins anew as another member, a
    few times in a row; then `MemberError` ends it.
    """
    loaded = configs.load(Path(config), overrides, name=name or None)
    command = Commands.of(config, loaded, overrides)

    def work(interruption: Interruption) -> None:
        try:
            rejoining(
                lambda: _take_part(role, loaded, command, build, notice, interruption),
                lease_s=loaded.run.rollout.lease_s,
                notice=notice,
            )
        except RunOver as over:
            notice(str(over))

    Interruption().run(work)


def _take_part(
    role: Role,
    loaded: configs.LoadedConfig[configs.RunConfig],
    command: Commands,
    build: Callable[[Joining], Work],
    notice: Callable[[str], None],
    interruption: Interruption,
) -> None:
    directory = run_directory(loaded.run)
    components = resolve(loaded, role=role)
    with ExitStack() as closing:
        closing.callback(components.close)
        run = asyncio.run(find_run(components, directory, Wait(notice, loaded.run.roles.wait_s), command))
        closing.callback(lambda: asyncio.run(run.store.close()))
        directory.add_missing()
        host = socket.gethostname()
        member = new_member(components, directory.name, role)
        modules = components.registry.modules
        log = closing.enter_context(directory.logging_to(f"{role}-{host}", member.pid, modules=modules))
        check_agreement(member, asyncio.run(run.store.members(directory.name)))
        loop = LoopThread(
            "agents" if role == "sample" else "server",
            workers=loaded.run.rollout.max_concurrent_rollouts if role == "sample" else 1,
            notice=notice,
            patience_s=loaded.run.rollout.timeout_s if role == "sample" else math.inf,
        )
        closing.callback(loop.close)
        joining = Joining(
            components=components,
            directory=directory,
            store=run.store,
            member=member,
            identity=run.row.identity,
            loop=loop,
            notice=notice,
            asked_to_stop=interruption.check,
            command=command,
            end=RunEnd(run, loaded.run.roles.wait_s, notice, command),
        )
        try:
            _work(joining, build(joining))
        except RunOver:
            raise
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted: {member.name} has left run '{directory.name}'") from None
        except AgentRLError:
            logger.exception("this member of the run stopped")
            raise
        except Exception as error:
            logger.exception("this member of the run stopped")
            raise RunError(f"{type(error).__name__}: {error} (unexpected error; the traceback is in {log})") from error


def _work(joining: Joining, work: Work) -> NoReturn:
    member = attrs.evolve(joining.member, url=work.url)
    failure = ""

    def report(_: Member) -> Mapping[str, Any]:
        told = {**member.report, **work.report()}
        return {**told, "waits_for": told.get("waits_for") or joining.end.waits_for, "error": failure}

    def check() -> None:
        joining.asked_to_stop()
        membership.check()

    with ExitStack() as closing:
        closing.callback(work.close)
        membership = Membership(joining.store, [member], report=report, notice=joining.notice)
        membership.join()
        closing.callback(membership.leave)
        closing.callback(work.finish)
        work.begin(membership)
        joining.notice(f"{member.name} has joined run '{member.run_id}'")
        try:
            joining.loop.run(_stay(joining, member, membership, work), asked_to_stop=check)
        except AgentRLError as error:
            # What follows from the loss of the membership is told as that.
            membership.check()
            # The trainer tells its user why it has no sampler, or no server, any more.
            failure = str(error)
            membership.tell()
            raise


async def _stay(joining: Joining, member: Member, membership: Membership, work: Work) -> NoReturn:
    """Look at the run again and again, until an exception says that this member's work is done."""
    loop, store = asyncio.get_running_loop(), joining.store
    told, told_at = _news(work), loop.time()
    while True:
        members = await store.members(member.run_id, live=True)
        await joining.end.look(members)
        if (await store.control(member.run_id)).wanted == "stop":
            raise RunOver(member.run_id, "stopped")
        urgent = await work.look(members)
        if urgent or (loop.time() - told_at > _TELL_S and told != _news(work)):
            told, told_at = _news(work), loop.time()
            # On a thread of its own: those of the loop may all be taken by agents.
            await call_on_thread(membership.tell, name="tell")
        await asyncio.sleep(LOOK_S)


def _news(work: Work) -> Mapping[str, Any]:
    """Return a member's report without the times, which change always and may wait for the next heartbeat."""
    return {name: value for name, value in work.report().items() if not name.endswith("_ms")}
