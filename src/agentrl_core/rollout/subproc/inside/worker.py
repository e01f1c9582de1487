"""Agent worker process: run one workflow's episodes for `mode: subproc`, under any Python from 3.8 on.

Started as `python start.py CONTROL_FD LIFELINE_FD`. The started process is the *guard*: it forks the worker and waits.
When the worker ends, or when the run is gone, the guard kills every process below itself and reports over the lifeline
how the worker ended. The worker talks to the run over the control socket in frames:

    run -> worker   what to load, see `ForeignWorkflow`, once; its body a pickled workflow for our own interpreter
    worker -> run   {op: ready, …}, or {op: refused, kind, message}
    run -> worker   {op: run, id, episode, environ, pickled, tools}, its body the task's data; {op: cancel, id};
                    {op: stop}
    worker -> run   {op: began, id}, maybe {op: cancelling, id}, then {op: done, id, value} or {op: raised, id, …};
                    before that any number of {op: ask, id, call, method, given}, for tools
    run -> worker   {op: told, id, call, value or error} for each
    run -> worker   {op: over, id}
    worker -> run   {op: idle, id}

The ids are random, one for each `run` and each `over`. The agent's code can write to the same socket, but it cannot
guess the id of a later request, so nothing that it writes is taken for the answer of a later episode. Messages of the
worker have no body.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import sys
import traceback
from typing import Any

from .episodes import LONGEST_TRACE, Worker
from .foreign_workflow import ForeignWorkflow
from .frames import answer_frame, receive
from .guard import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, guard, prctl
from .share_tls_context import shared_tls
from .signatures import is_async
from .telling import place_of


def main() -> None:
    """Fork the worker and guard it."""
    control, lifeline = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    control.set_inheritable(False)
    lifeline.set_inheritable(False)
    # Orphans below this process become its children, so that a process that detaches itself from the worker is killed
    # too.
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wakeup, alarm = socket.socketpair()
    alarm.setblocking(False)
    # Python retries `poll` after a signal (PEP 475), so handlers alone would not wake the guard: each signal also
    # writes a byte to `alarm`.
    handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGCHLD, signal.SIGTERM)}
    signal.set_wakeup_fd(alarm.fileno(), warn_on_full_buffer=False)
    guarding = os.getpid()
    worker = os.fork()
    if worker:
        control.close()
        guard(lifeline, worker, wakeup)
    signal.set_wakeup_fd(-1)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    for sock in (lifeline, wakeup, alarm):
        sock.close()
    os.setpgid(0, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # If the guard ended before the line above, that signal never comes: do not start at all.
    if os.getppid() == guarding:
        _work(control)


def _work(control: socket.socket) -> None:
    # After a crash of the interpreter, "Fatal Python error" and the place stand in the output, see `Output.last_lines`.
    faulthandler.enable(all_threads=False)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    del sys.argv[1:]
    message = receive(control)
    if message is None:
        return
    start, payload = message
    # Another interpreter keeps its own path, without the first entry, which is the folder of `start.py`: an agent must
    # not be able to import these modules by their bare names.
    sys.path[:] = start["sys_path"] or sys.path[1:]
    with shared_tls():
        try:
            loaded = _load(start, payload)
        except BaseException as error:  # noqa: BLE001  (any failure is reported to the run)
            kind = getattr(error, "kind", type(error).__name__)
            trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            answer = {"op": "refused", "kind": kind, "message": str(error)[:LONGEST_TRACE]}
            answer["place"] = place_of(error, start["skip"])
            control.sendall(answer_frame(dict(answer, trace=trace[:LONGEST_TRACE])))
            return
        worker = Worker(control, loaded, start["skip"])
        ready = {"op": "ready", "name": loaded.name, "is_async": is_async(loaded.function)}
        control.sendall(answer_frame(ready))
        try:
            worker.serve()
        except BaseException:  # noqa: BLE001  (the agent broke the process or its connection)
            with contextlib.suppress(OSError, ValueError):
                traceback.print_exc()
            # An interpreter that ends by itself may wait for ever for the agent's threads and pools.
            os._exit(1)


def _load(start: dict[str, Any], payload: bytes) -> Any:
    if not start["own"]:
        return ForeignWorkflow(start)
    from agentrl_core.rollout.subproc.own_interpreter import OwnWorkflow

    return OwnWorkflow(start, payload)
