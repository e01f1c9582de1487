"""What every run has around it, whatever it trains by: lock, log, store, trackers, signals, status, last words."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl_core.errors import AgentRLError, RunError, StoreError
from agentrl_core.invocation import command_line
from agentrl_core.run.audience import Audience

if TYPE_CHECKING:
    from agentrl_core.run.directory import RunDirectory
    from agentrl_core.run.parts import Parts
    from agentrl_core.stores.base import Store
    from agentrl_core.trackers.base import RunSummary, Tracker

logger = logging.getLogger(__name__)

T = TypeVar("T")


def carry_out(parts: Parts[Any], directory: RunDirectory, work: Callable[[Store, Audience], RunSummary]) -> RunSummary:
    """Open what a run needs, do its work, and close everything, whatever happens in between."""
    with directory.locked(), directory.logging_to("run"), _terminated_as_interrupted(), ExitStack() as closing:
        closing.callback(parts.close)
        try:
            audience = Audience(_trackers(parts, directory, closing), parts.registry.hooks.notify)
            store: Store = parts.build("stores", "store", parts.config.store, path=directory.database)
            closing.callback(lambda: asyncio.run(store.close()))
            with _status(store, directory.name):
                return work(store, audience)
        except KeyboardInterrupt:
            raise RunError(
                "interrupted; what is stored stays. Go on from the newest checkpoint with: "
                + command_line("runs", "resume", directory.reference)
            ) from None
        except AgentRLError:
            logger.exception("the run stopped")
            raise
        except Exception as error:
            logger.exception("the run stopped")
            raise RunError(
                f"{type(error).__name__}: {error} (unforeseen; the traceback is in {directory.log('run')})"
            ) from error


def outside_event_loops(work: Callable[[], T]) -> T:
    """Do blocking work; where an event loop runs on this thread, a notebook's for one, on another thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1, thread_name_prefix="trainer") as thread:
        return thread.submit(work).result()


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM, and a terminal that closes, end the run as Ctrl-C does: status stored, advice given."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may
        return

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    ours = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]  # nohup stays nohup
    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def _trackers(parts: Parts[Any], directory: RunDirectory, closing: ExitStack) -> list[Tracker]:
    trackers: list[Tracker] = []
    for index, item in enumerate(parts.config.trackers):
        tracker = parts.build("trackers", f"trackers.{index}", item, run_dir=directory.path)
        closing.callback(tracker.close)
        trackers.append(tracker)
    return trackers


@contextmanager
def _status(store: Store, run_id: str) -> Iterator[None]:
    """Write into the store how the run ended; a finished one that does not go on stays finished."""
    try:
        yield
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        with suppress(StoreError):  # the store may be what failed, or not know the run yet
            if (run_id, "finished") not in {(row.id, row.status) for row in asyncio.run(store.runs())}:
                asyncio.run(store.update_run(run_id, status=status, error=str(error)))
        raise
    asyncio.run(store.update_run(run_id, status="finished"))
