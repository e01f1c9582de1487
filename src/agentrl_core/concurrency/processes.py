"""Call Python functions in worker processes that can be killed, for scorers and rewards that may hang or crash.

    verdict = await run_in_process(check_proof, proof, timeout_s=10, memory_mb=512)

Workers are new interpreters, never forks. They start on demand, serve further calls, and end with `close_workers` or
with this process. They protect the run from faults of the function, not this machine from malicious code: they are no
sandbox. Agents of mode subproc have workers of another kind, see `rollout.subproc`.

Not by a library's pool (tests/benchmarks/bench_processes.py, pebble 5.2 with spawn, 2 cores): after a timeout pebble
leaves running what the function had started, and after a kill of this process the function itself. Its workers can read
the whole environment, admin key included, and import the script that was started. A result that cannot be unpickled
here ends pebble's own thread, so that no later call returns, and one of 200 MB is read into this process. A first call
takes 440 ms of CPU time (ours 93), a next one 0.6 ms (ours 0.8), and a timeout is noticed 77 ms late (ours 7). The
standard library's pool cannot end a call.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import pickle
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import attrs

from agentrl_core.concurrency import FILE_MODULE, process_worker
from agentrl_core.concurrency.secrecy import environment
from agentrl_core.concurrency.threads import DaemonExecutor

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_LOADING_S = 60.0
"""Longest time that a worker may take to start, and to import a function and its arguments' modules."""
_LAST_LINES = 5
"""Lines of output that an error message quotes."""
_READ_BYTES = 2**20
"""Bytes read at a time."""
_LONGEST_TEXT = 400
"""Characters of an unpickling error that a message quotes."""
_LONGEST_LINE = 4096
"""Bytes of one line of output; a longer line counts as several."""


class CallTimeoutError(Exception):
    """A call exceeded its time limit; its process was killed."""


class WorkerDiedError(Exception):
    """The worker process ended during a call."""


class _NotBegunError(WorkerDiedError):
    """The worker was unusable before the call began: an earlier call left code in it that writes to its connection."""


class _RemoteTraceback(Exception):  # noqa: N818 - shown as the cause of an error, as multiprocessing does
    """Traceback in the worker, shown as the cause of the error, as multiprocessing does."""


async def run_in_process(
    function: Callable[..., Any],
    *args: Any,
    timeout_s: float,
    memory_mb: int | None = None,
    max_workers: int | None = None,
    pool: str = "",
) -> Any:
    """Return `function(*args)`, called in another process; an exception of the function is raised here.

    `timeout_s` counts from the moment at which the call begins there, without the wait for a free worker and for
    imports. `memory_mb` (Linux) is the memory that the call may use beyond what its worker has. Calls with the same
    `max_workers` and `pool` share that many processes; None stands for half of the cores, at least 2. Cancelling this
    call kills its process.

    Raises `CallTimeoutError`, `WorkerDiedError`, and `TypeError` if `function` or `args` cannot be sent.
    """
    call = _Call(pack(function, args), timeout_s, memory_mb)
    future = _pool(pool, max_workers).submit(call)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        call.cancel()
        raise


def pack(function: Callable[..., Any], args: tuple[Any, ...] = ()) -> bytes:
    """Return a call as bytes to send; `TypeError` says why it cannot be sent."""
    inner = function
    # Look through `functools.partial`: the innermost function's module and name decide whether it can be imported.
    while hasattr(inner, "func"):
        inner = inner.func
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    if getattr(inner, "__module__", "") == "__main__":
        raise TypeError(
            f"{name} is defined in the script that was started, which worker processes cannot import; "
            "move it to a module of its own"
        )
    try:
        return pickle.dumps((function, args), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise TypeError(
            f"{name} cannot be sent to a worker process ({type(error).__name__}: {error}); it must be a function at "
            "the top of a module, or an object of a class there, and its arguments plain data"
        ) from error


def close_workers() -> None:
    """Kill all workers; running calls raise `WorkerDiedError`. A later call starts new workers."""
    with _lock:
        pools = list(_pools.values())
        _pools.clear()
    for pool in pools:
        pool.close()


@attrs.define(eq=False)
class _Call:
    """One call, from its submission to its result; thread-safe."""

    payload: bytes
    timeout_s: float
    memory_mb: int | None
    _worker: _Worker | None = None
    _cancelled: bool = False
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def run(self, worker: _Worker) -> Any:
        # Under the lock, a cancellation is either seen here or finds the worker that it has to kill.
        with self._lock:
            if self._cancelled:
                raise asyncio.CancelledError
            self._worker = worker
        try:
            return worker.call(self.payload, self.timeout_s, self.memory_mb)
        finally:
            with self._lock:
                self._worker = None

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._worker is not None:
                self._worker.kill()


class _Pool:
    """Up to `workers` processes, each used by one thread."""

    def __init__(self, workers: int) -> None:
        self._executor = DaemonExecutor(workers, name="agentrl-process")
        self._own = threading.local()
        self._lock = threading.Lock()
        self._workers: set[_Worker] = set()
        self._closed = False

    def submit(self, call: _Call) -> Any:
        return self._executor.submit(lambda: self._run(call))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            workers = tuple(self._workers)
        self._executor.shutdown(wait=False)
        for worker in workers:
            worker.kill()

    def _run(self, call: _Call) -> Any:
        try:
            return call.run(self._worker())
        except _NotBegunError:
            # Once: the function has not run, and a new process has nothing left over from earlier calls.
            return call.run(self._worker())

    def _worker(self) -> _Worker:
        """Return this thread's worker; start a new one if it has none that is alive."""
        worker: _Worker | None = getattr(self._own, "worker", None)
        if worker is not None and worker.is_alive:
            return worker
        if worker is not None:
            worker.kill()
        with self._lock:
            self._workers.discard(worker)
            if self._closed:
                raise WorkerDiedError("the worker processes were closed")
            worker = self._own.worker = _Worker()
            self._workers.add(worker)
        return worker


class _Worker:
    """One worker process and the connection to it."""

    def __init__(self) -> None:
        ours, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 (our own script)
                # `-P` keeps this package's folder off the worker's import path: its `types.py` would hide the standard
                # library's.
                [sys.executable, "-P", process_worker.__file__, str(theirs.fileno())],
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                # So that it can be killed with everything that it starts, and Ctrl-C reaches its parent alone.
                start_new_session=True,
            )
        self._connection: Connection = ours
        self._said: deque[str] = deque(maxlen=_LAST_LINES)
        stdout = self._process.stdout
        if stdout is None:
            raise TypeError("the worker was started without a pipe")
        self._listener = threading.Thread(target=self._listen, args=(stdout,), name="agentrl-process-log", daemon=True)
        self._listener.start()
        self._dead = False

    @property
    def is_alive(self) -> bool:
        """Return whether the worker can take another call; not if it wrote anything after its answer."""
        return not self._dead and not self._has_ended(os.WNOHANG) and not self._connection.poll()

    def call(self, payload: bytes, timeout_s: float, memory_mb: int | None) -> Any:
        """Call and wait; the process is killed if it gives no answer."""
        try:
            ok, value, text = _unpickled(self._exchange(payload, timeout_s, memory_mb))
        except (EOFError, OSError):
            self.kill()
            raise WorkerDiedError(self._last_words()) from None
        except BaseException:
            self.kill()
            raise
        if ok:
            return value
        # An interpreter that ran out of memory may be in any state.
        if isinstance(value, MemoryError):
            self.kill()
        raise value from _RemoteTraceback(f"\n{text}")

    def _exchange(self, payload: bytes, timeout_s: float, memory_mb: int | None) -> bytes:
        # The function can write to the connection, but cannot guess the id of a later call.
        number = secrets.token_bytes(16)
        header = (number, sys.path, _file_modules(), memory_mb)
        self._connection.send_bytes(pickle.dumps(header, protocol=pickle.HIGHEST_PROTOCOL))
        self._connection.send_bytes(payload)
        late = (
            f"the worker process was not ready within {_LOADING_S:g} s: an import of the function's module hangs, or "
            "the machine is too busy to start it in time"
        )
        try:
            answer = self._receive(number, _LOADING_S, late)
        except WorkerDiedError as error:
            raise _NotBegunError(*error.args) from None
        if answer == process_worker.STARTED:
            answer = self._receive(number, timeout_s, f"no result within {timeout_s:g} s; its process was killed")
        return answer

    def _receive(self, number: bytes, limit_s: float, late: str) -> bytes:
        """Return the next message, as `Connection.send_bytes` frames it, complete and in time.

        The called function can write to the same socket, so a message that is too long, or that belongs to another
        call, is refused.
        """
        end = time.monotonic() + limit_s
        size = int.from_bytes(self._read(4, end, late), "big", signed=True)
        if not len(number) < size <= len(number) + process_worker.MAX_ANSWER_BYTES:
            raise WorkerDiedError("its process was killed: it wrote something that is not a result to its connection")
        message = self._read(size, end, late)
        if not message.startswith(number):
            raise WorkerDiedError("its process was killed: it sent the answer of another call")
        return message[len(number) :]

    def _read(self, size: int, end: float, late: str) -> bytes:
        pieces = bytearray()
        while len(pieces) < size:
            if not self._connection.poll(max(0.0, end - time.monotonic())):
                raise CallTimeoutError(late)
            piece = os.read(self._connection.fileno(), min(size - len(pieces), _READ_BYTES))
            if not piece:
                raise EOFError
            pieces += piece
        return bytes(pieces)

    def kill(self) -> None:
        """Kill the process and everything that it started; idempotent, from any thread."""
        self._dead = True
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _has_ended(self, flags: int = 0) -> bool:
        """Wait for the end of the process, or with WNOHANG check for it; does not reap it.

        Until it is reaped, its pid and process group id are not reused, so the processes that it started can still be
        killed safely.
        """
        if self._process.returncode is not None:
            return True
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | flags) is not None
        except ChildProcessError:
            return True

    def _last_words(self) -> str:
        """Return how the process ended, and what it printed last."""
        code = self._process.wait()
        self._listener.join(timeout=1.0)
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        said = f"; it printed last: {' | '.join(self._said)}" if self._said else ""
        return f"its process ended {how}{said}"

    def _listen(self, stdout: IO[bytes]) -> None:
        """Log what the process prints, and reap it at its end."""
        with stdout:
            while line := stdout.readline(_LONGEST_LINE):
                text = line.decode(errors="replace").rstrip()
                self._said.append(text)
                logger.info("a worker process printed: %s", text)
        self._has_ended()
        self.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


def _unpickled(answer: bytes) -> tuple[bool, Any, str]:
    try:
        ok, value, text = pickle.loads(answer)  # noqa: S301 (written by our worker)
    except Exception as error:
        told = f"{type(error).__name__}: {error}"[:_LONGEST_TEXT]
        raise WorkerDiedError(f"its process was killed: its result cannot be read here ({told})") from error
    if not (ok is True or (ok is False and isinstance(value, Exception) and isinstance(text, str))):
        raise WorkerDiedError("its process was killed: it wrote something that is not a result to its connection")
    return ok, value, text


def _file_modules() -> dict[str, str]:
    """Return the modules that were loaded from files under names that only this process knows."""
    return {
        name: str(Path(file))
        # A copy: another thread may import while this iterates.
        for name, module in tuple(sys.modules.items())
        if name.startswith(FILE_MODULE) and (file := getattr(module, "__file__", None))
    }


_pools: dict[tuple[str, int | None], _Pool] = {}
_lock = threading.Lock()


def _pool(name: str, max_workers: int | None) -> _Pool:
    with _lock:
        if (name, max_workers) not in _pools:
            _pools[name, max_workers] = _Pool(max_workers or max(2, (os.cpu_count() or 1) // 2))
        return _pools[name, max_workers]


atexit.register(close_workers)
