"""Frame around the work of `run` and `sft`: folder lock, log file, store, trackers, final status and message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from agentrl_core.config.invocation import command_line
from agentrl_core.errors import AgentRLError, MemberError, RunError, StoreError
from agentrl_core.run.events import RunEvents
from agentrl_core.run.folder_readme import write_readme
from agentrl_core.run.shared_start import check_identity
from agentrl_core.run.stores import open_store

if TYPE_CHECKING:
    from agentrl_core.api.stores import Store
    from agentrl_core.api.trackers import RunSummary, Tracker
    from agentrl_core.run.component_checks import BuiltComponents
    from agentrl_core.run.directory import RunDirectory

logger = logging.getLogger(__name__)


def carry_out(
    components: BuiltComponents[Any],
    directory: RunDirectory,
    work: Callable[[Store, RunEvents, ExitStack], RunSummary],
    *,
    member_id: str = "",
    resume: str = "",
) -> RunSummary:
    """Do the work of a run in its frame: lock the folder, open log, store and trackers, close them even if it fails.

    What `work` enters into its stack ends after the run's final status is stored, which `member_id` must be live for.

    Raises `KeyboardInterrupt` with the command that resumes the run (`resume`, or else `runs resume`), and `RunError`
    for an unexpected exception.
    """
    modules = components.registry.modules
    with directory.locked(), directory.private(), directory.logging_to("run", modules=modules), ExitStack() as closing:
        closing.callback(_update_readme, directory)
        closing.callback(components.close)
        try:
            write_readme(directory)
            events = RunEvents(_trackers(components, directory, closing), components.registry.hooks.notify)
            store: Store = open_store(components, directory)
            # Callbacks run in reverse order: the store closes before the trackers, and the components close last.
            closing.callback(lambda: asyncio.run(store.close()))
            asyncio.run(check_identity(store, directory))
            with ExitStack() as leaving, _status(store, directory, member_id):
                return work(store, events, leaving)
        except KeyboardInterrupt as stop:
            what = str(stop) or _before_any_step(directory)
            message = f"interrupted {what}. To resume: {resume or command_line('runs', 'resume', directory.reference)}"
            logger.warning("%s", message)
            raise KeyboardInterrupt(message) from None  # `Interruption.run` makes the signal's exception of it
        except AgentRLError:
            logger.exception("the run stopped")
            raise
        except Exception as error:
            logger.exception("the run stopped")
            raise RunError(
                f"{type(error).__name__}: {error} (unexpected error; the traceback is in {directory.log('run')})"
            ) from error


def _update_readme(directory: RunDirectory) -> None:
    with suppress(RunError):  # how the run ended counts more, and a full disk is told already
        write_readme(directory)


def _before_any_step(directory: RunDirectory) -> str:
    """Say what is saved of a run that was interrupted before its next step began, fresh or just resumed."""
    saved = directory.all_checkpoints()
    if not saved or saved[0][0] == 0:
        return "before the first step: nothing is saved yet"
    return f"before its next step: step {saved[0][0]} is saved"


def _trackers(components: BuiltComponents[Any], directory: RunDirectory, closing: ExitStack) -> list[Tracker]:
    trackers: list[Tracker] = []
    for index, item in enumerate(components.config.trackers):
        tracker = components.build("trackers", f"trackers.{index}", item, run_dir=directory.path)
        closing.callback(tracker.close)
        trackers.append(tracker)
    return trackers


@contextmanager
def _status(store: Store, directory: RunDirectory, member_id: str) -> Iterator[None]:
    """Write into the store how the run ended.

    A row that this process has not announced or rewound stays as it is: that of a finished run whose resumption fails,
    and that of another folder's run with the same name. So does that of a run which goes on without this process: one
    that was refused, or declared lost.
    """
    run_id = directory.name
    try:
        yield
    except MemberError:
        raise
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        # The store itself may be the cause of the failure, or may not know the run yet. The first error counts.
        with suppress(StoreError):
            own = (run_id, directory.identity, "running")
            if own in {(row.id, row.identity, row.status) for row in asyncio.run(store.runs())}:
                asyncio.run(store.update_run(run_id, status=status, error=str(error), member_id=member_id))
        raise
    asyncio.run(store.update_run(run_id, status="finished", member_id=member_id))
