"""Script of the worker processes of `concurrency.processes`: run calls and send results; standard library only.

Started with the file descriptor of its connection. Its standard input is a lifeline: when that reaches its end, the
parent is gone, and this process exits at once, even in the middle of a call.
"""

import functools
import importlib.util
import os
import pickle
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_LONGEST_TEXT = 2**20
"""Characters kept of a message or traceback of an error that cannot be pickled."""

STARTED = b"started"
"""Sent once a function and its arguments are unpickled: their imports do not count as the function's time."""
MAX_ANSWER_BYTES = 64 * 2**20
"""Largest pickled result; scores and rewards have a few bytes."""


def main() -> None:
    """Run calls until the connection ends."""
    _hold_on(os.dup(0))
    # The function gets an empty standard input: reading the lifeline would block, or hide the parent's end.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    files = _Files()
    sys.meta_path.append(files)
    own = os.getpid()
    with Connection(int(sys.argv[1])) as connection:
        while True:
            try:
                header = connection.recv_bytes()
                payload = connection.recv_bytes()
            except EOFError:
                return
            number, folders, files.known, memory_mb = pickle.loads(header)  # noqa: S301 (written by our parent)
            sys.path[:] = folders
            answer = _answer(functools.partial(connection.send_bytes, number + STARTED), payload, memory_mb)
            # The function forked and this is the child: only the original process may answer.
            if os.getpid() != own:
                os._exit(0)
            connection.send_bytes(number + answer)


def _answer(started: Callable[[], None], payload: bytes, memory_mb: int | None) -> bytes:
    """Run a call and return its outcome: `(True, value, "")` or `(False, error, traceback)`."""
    try:
        function, arguments = pickle.loads(payload)  # noqa: S301 (written by our parent)
        started()
        value = _limited(lambda: function(*arguments), memory_mb)
        return _pickled(True, value, "")
    except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
        return _failed(error)
    finally:
        sys.stdout.flush()


def _limited(call: Callable[[], Any], memory_mb: int | None) -> Any:
    """Call with `memory_mb` more address space than the process has now."""
    if memory_mb is None:
        return call()
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory_mb * 2**20, hard))
    try:
        return call()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _failed(error: BaseException) -> bytes:
    """Return an exception as it is if it can be sent and is an `Exception`; else a RuntimeError that describes it."""
    text = "".join(traceback.format_exception(error))
    if isinstance(error, Exception):
        try:
            message = _pickled(False, error, text)
            pickle.loads(message)  # noqa: S301 - our own; some errors pickle but do not unpickle
        except Exception:  # noqa: BLE001, S110 - described as text below
            pass
        else:
            return message
    told = f"{type(error).__name__}: {error}"[:_LONGEST_TEXT]
    return _pickled(False, RuntimeError(told), text[-_LONGEST_TEXT:])


def _pickled(ok: bool, value: Any, text: str) -> bytes:  # noqa: FBT001 (a field of the message)
    answer = pickle.dumps((ok, value, text), protocol=pickle.HIGHEST_PROTOCOL)
    if len(answer) > MAX_ANSWER_BYTES:
        raise ValueError(f"expected a result of at most {MAX_ANSWER_BYTES} bytes, found {len(answer)}")
    return answer


def _hold_on(lifeline: int) -> None:
    """Exit the process as soon as the lifeline ends."""

    def wait() -> None:
        os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class _Files:
    """Import hook for modules that the parent loaded from files which are on no import path."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> Any:
        if name not in self.known:
            return None
        return importlib.util.spec_from_file_location(name, self.known[name])


if __name__ == "__main__":
    main()
