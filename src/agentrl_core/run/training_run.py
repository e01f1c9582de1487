"""One run of the training loop as a member of the run, whichever way the trainer reaches its samplers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from agentrl_core.errors import StoreError
from agentrl_core.run.cpu_budget import learner_threads, usable_cores
from agentrl_core.run.directions import Directions
from agentrl_core.run.lifecycle import carry_out
from agentrl_core.run.loop import TrainingLoop, audit_trail
from agentrl_core.run.membership import Membership, declare_gone
from agentrl_core.run.roles.agreement import check_agreement, check_tasks, new_member
from agentrl_core.stores.files import Writer

if TYPE_CHECKING:
    from contextlib import ExitStack

    from agentrl_core.api.members import Member, Role
    from agentrl_core.api.stores import Store
    from agentrl_core.api.trackers import Activity, RunSummary
    from agentrl_core.run.components import RunComponents
    from agentrl_core.run.directory import RunDirectory
    from agentrl_core.run.events import RunEvents
    from agentrl_core.run.interruption import Interruption
    from agentrl_core.run.sampling import SamplingSide
    from agentrl_core.run.start import Start

logger = logging.getLogger(__name__)

Begin: TypeAlias = "Callable[[RunComponents, RunDirectory, Store, RunEvents, Callable[[], Writer]], Start]"
"""Function that makes a run's start: `fresh_start` or `resumed_start`."""


class OpenSampling(Protocol):
    """Function that opens the sampling side of a trainer, which has joined the run."""

    def __call__(self, start: Start, membership: Membership, events: RunEvents) -> SamplingSide:
        """Open it; the training loop closes it."""
        ...


def run_training(
    components: RunComponents,
    directory: RunDirectory,
    begin: Begin,
    interruption: Interruption,
    *,
    roles: Sequence[Role],
    open_sampling: OpenSampling,
    resume: str = "",
) -> RunSummary:
    """Train to the end inside the frame of `carry_out`, as a member in each of `roles`."""
    started = time.time()
    members = [new_member(components, directory.name, role) for role in roles]
    (trainer,) = [member for member in members if member.role == "train"]

    def work(store: Store, events: RunEvents, leaving: ExitStack) -> RunSummary:
        if fewer := learner_threads(components.config, usable_cores())[1]:
            events.notice(fewer)
        # Before anything is written or loaded: a process that is refused changes nothing. What a killed process of this
        # machine had is no reason to refuse, as in a run that is resumed with another option.
        asyncio.run(declare_gone(store, directory.name))
        others = asyncio.run(store.members(directory.name))
        check_tasks(trainer, others)
        check_agreement(trainer, others)
        directions = Directions(events.notice)

        def report(member: Member) -> Mapping[str, Any]:
            return {**member.report, **(_told(events.progress.now()) if member.role == "train" else {})}

        # It ends after the final status is stored, so that whoever sees the trainer leave knows how the run ended.
        membership = leaving.enter_context(Membership(store, members, report=report, notice=events.notice))
        membership.on_control(directions.obey)
        membership.on_control(lambda control: interruption.ask() if control.wanted == "stop" else None)
        start = begin(components, directory, store, events, lambda: _join(store, membership, trainer))
        try:
            sampling = open_sampling(start, membership, events)
        except BaseException as error:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            _seal_without_steps(components, directory, start, status)
            raise
        try:
            loop = TrainingLoop(
                components,
                directory,
                start,
                sampling,
                events,
                interruption,
                started_at=started,
                directions=directions,
            )
        except BaseException:  # from here on the loop closes the sampling side
            sampling.close()
            raise
        return loop.run()

    return carry_out(components, directory, work, member_id=trainer.id, resume=resume)


def _seal_without_steps(components: RunComponents, directory: RunDirectory, start: Start, status: str) -> None:
    """Seal a start that no step follows: without it, `trace verify` would take its config and version for changes."""
    try:
        audit_trail(components, directory, start).end(status)
    except StoreError as error:  # what kept the sampling side from opening counts more
        logger.warning("the start is not in the audit trail: %s", error)


def _told(activity: Activity) -> dict[str, Any]:
    """Return what others read about the trainer: its step, and what it waits for or does."""
    done = f" ({activity.done} of {activity.total} {activity.unit})" if activity.total else ""
    return {"step": activity.step, "waits_for": f"{activity.phase}{done}"}


def _join(store: Store, membership: Membership, trainer: Member) -> Writer:
    """Join the run, and return this process as the writer of its folders."""
    membership.join()
    others = asyncio.run(store.members(trainer.run_id))
    gone = frozenset(member.id for member in others if member.state != "live")
    return Writer(name=trainer.id, check=membership.confirm, gone=gone)
