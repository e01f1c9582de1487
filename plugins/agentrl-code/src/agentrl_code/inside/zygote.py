"""Helper process that forks a sandbox for each run: a fresh interpreter that holds none of the trainer's data.

`agentrl_code.sandbox` starts this file as a script, with a control socket. For each sandbox it sends one or two
sockets over it: one for the job and the report, and for a test and its program the channel between them. A fork of
this process, the watcher, reads the job, forks again into the namespaces of the sandbox, and watches that process from
outside. A program can reach neither this process nor the watcher.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import fcntl
import gc
import json
import random  # noqa: F401 - imported once here, before the forks, because programs often import it
import re  # noqa: F401
import select
import signal
import socket
import struct
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from agentrl_code.inside import calls, confine, judge, program, root
from agentrl_code.inside.levels import FULL, LIMITS

# The folder of installed packages: by default programs can import only the standard library.
del sys.path[0]

_GRACE_S = 30.0
"""Longest time that a process may take to confine itself."""
_ERRORS_KEPT = 4096
"""Bytes kept from the end of standard error."""
_WATCH_S, _END_S = 0.05, 0.002
"""Longest sleep between two looks at a program that still prints, and at one that has closed its streams."""
_TOO_MUCH = "it printed more than output_kb allows"
_REWRITES = 8
"""Bound on the bytes that a program writes in all, as a multiple of the size that its files may have.

Files that it has removed but keeps open take up space, and no folder lists them.
"""
_CHANNEL, _READY, _GO = 3, 4, 5
"""File descriptors of the program's process, after its standard streams."""


def main() -> None:
    """Fork a sandbox for each message on the control socket, until the trainer closes it."""
    os.umask(0o022)
    # The kernel reaps the watchers. Each watcher sets SIGCHLD back, because it waits for its own program.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Ctrl-C reaches all processes of a terminal; the trainer handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    # Results that every sandbox needs are computed once, before any fork.
    if calls.supported():
        for shared_files in (False, True):
            calls.compiled_filter(shared_files=shared_files)
        root.outermost(_readable([]))
    gc.freeze()  # collections in the forks then do not touch, and so do not copy, the pages of these objects
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not message:
            return
        try:
            if os.fork() == 0:
                control.close()
                _sandbox(socket.socket(fileno=descriptors[0]), descriptors[1:])
        except OSError:
            # No room for another process. The socket closes below, and the trainer finds that there is no report.
            traceback.print_exc()
        for descriptor in descriptors:
            os.close(descriptor)


def _readable(packages: Sequence[str]) -> tuple[str, ...]:
    """Return the paths that a program may read: the system's libraries, Python, and the requested packages."""
    python = (sys.base_prefix, sys.base_exec_prefix, *sys.path)
    return (*root.SYSTEM, *root.DEVICES, *python, *packages)


def _sandbox(trainer: socket.socket, channel: list[int]) -> NoReturn:
    """Run one job and report `{"ready": true}` once it is confined, then how it ended; or `{"refused": REASON}`."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        job = _receive(trainer)
        if os.geteuid() == 0:
            os.setgroups([])
        job["uid"], job["gid"] = (confine.NOBODY,) * 2 if os.geteuid() == 0 else (os.geteuid(), os.getegid())
        job["readable"] = _readable(job["packages"])
        try:
            _run(job, trainer, channel)
        except OSError as error:
            _send(trainer, {"refused": str(error)})
    except BrokenPipeError:  # the trainer has given up this run
        pass
    except BaseException:  # noqa: BLE001 - this process ends here; the trainer finds that there is no report
        traceback.print_exc()
    finally:
        os._exit(0)


def _run(job: dict[str, Any], trainer: socket.socket, channel: list[int]) -> None:
    _prepare(job)
    stdin = _input(job)
    (out, say), (err, say_errors), (ready, be_ready), (go, let_go) = (os.pipe() for _ in range(4))
    pid = confine.clone_into_namespaces() if job["level"] == FULL else os.fork()
    if pid == 0:
        _be_the_program(job, [stdin, say, say_errors, *(channel or [stdin]), be_ready, go])
    for descriptor in (stdin, say, say_errors, be_ready, go, *channel):
        os.close(descriptor)
    try:
        if job["level"] == FULL:
            confine.map_identity(pid, job["uid"], job["gid"])
        # Only now: the process must not go on before its ids are mapped.
        os.write(let_go, b"!")
        os.close(let_go)
        if problem := _wait_until_ready(ready, trainer):
            raise OSError(problem)
        _send(trainer, {"ready": True})
        printed, why = _watch(pid, out, err, trainer, job)
    finally:
        status = _end(pid)
    for descriptor in (out, err):
        printed[descriptor] += _rest(descriptor, job["output_kb"] * 1024)
    if not why and len(printed[out]) > job["output_kb"] * 1024:
        why = _TOO_MUCH
    texts = [bytes(part).decode(errors="replace") for part in (printed[out], printed[err][-_ERRORS_KEPT:])]
    _send(trainer, {"status": status, "why": why, "out": texts[0], "err": texts[1]})


def _prepare(job: Mapping[str, Any]) -> None:
    """Give the folder to the user who runs the program. Raises OSError if that user could not run Python."""
    if job["level"] == FULL or os.geteuid() != 0:
        return
    if job["level"] == LIMITS and not confine.reachable(os.__file__):
        raise OSError(
            f"root runs programs as the user nobody, who cannot read Python's {os.__file__}; use a Python that every "
            "user can read, or start the run as another user"
        )
    os.chown(job["folder"], job["uid"], job["gid"])


def _input(job: Mapping[str, Any]) -> int:
    """Return a read-only descriptor of the program's input."""
    data = job["input"].encode("utf-8", "surrogatepass")
    if hasattr(os, "memfd_create"):
        written = os.memfd_create("input")
        with open(written, "wb", closefd=False) as file:
            file.write(data)
        # Opened again by its path, because the first descriptor of a memfd is writable.
        reading = os.open(f"/proc/self/fd/{written}", os.O_RDONLY)
        os.close(written)
        return reading
    with tempfile.NamedTemporaryFile(dir=job["folder"]) as file:
        file.write(data)
        file.flush()
        return os.open(file.name, os.O_RDONLY)


def _be_the_program(job: Mapping[str, Any], descriptors: list[int]) -> NoReturn:
    """Confine this process, report that to the watcher, run the job and exit."""
    try:
        # First out of the way, then to their places: a descriptor may stand where another one belongs.
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 64) for descriptor in descriptors]
        for place, descriptor in enumerate(high):
            os.dup2(descriptor, place)
        os.closerange(_GO + 1, 65536)
        os.setsid()
        os.read(_GO, 1)
        os.close(_GO)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        home = "/box" if job["level"] == FULL else job["folder"]
        os.environ.update({"HOME": home, "TMPDIR": home})
        sys.path.extend(job["packages"])
        confine.confine(job)
    except BaseException as error:  # noqa: BLE001 - this process ends here; the trainer gets the error
        os.write(_READY, (str(error) or type(error).__name__).encode()[:1000])
        os._exit(1)
    os.write(_READY, b"\0")
    os.close(_READY)
    if job["role"] == "script":
        os.close(_CHANNEL)
        code = program.run_script(job["code"])
    else:
        code = (program.serve if job["role"] == "serve" else judge.judge)(job["code"], _CHANNEL)
    os._exit(code)


def _wait_until_ready(ready: int, trainer: socket.socket) -> str:
    """Wait until the process is confined; return an empty text, or the reason why it could not be."""
    said = b""
    deadline = time.monotonic() + _GRACE_S
    while not said.endswith(b"\0"):
        found, _, _ = select.select([ready, trainer.fileno()], [], [], max(deadline - time.monotonic(), 0))
        if trainer.fileno() in found or not found:
            return "setting up the isolation took too long"
        data = os.read(ready, 4096)
        if not data:
            return said.decode(errors="replace") or "the process ended while its isolation was set up"
        said += data
    os.close(ready)
    return ""


def _watch(
    pid: int, out: int, err: int, trainer: socket.socket, job: Mapping[str, Any]
) -> tuple[dict[int, bytearray], str]:
    """Read a program's output until it ends or exceeds a limit; return the output, and which limit it was.

    Raises BrokenPipeError if the trainer gives up the run.
    """
    deadline = time.monotonic() + job["timeout_s"]
    printed = {out: bytearray(), err: bytearray()}
    poll, streams = select.poll(), {out, err}
    for descriptor in (out, err, trainer.fileno()):
        poll.register(descriptor, select.POLLIN)
    while streams or not _has_ended(pid):
        left = deadline - time.monotonic()
        if left <= 0:
            return printed, "it took too long"
        for descriptor, _ in poll.poll(min(left, _WATCH_S if streams else _END_S) * 1000):
            if descriptor == trainer.fileno():
                raise BrokenPipeError
            data = os.read(descriptor, 65536)
            printed[descriptor] += data
            if not data:
                poll.unregister(descriptor)
                streams.discard(descriptor)
        del printed[err][:-_ERRORS_KEPT]
        if len(printed[out]) > job["output_kb"] * 1024:
            return printed, _TOO_MUCH
        if job["level"] != FULL and _writes_too_much(pid, job):
            return printed, "it wrote more to files than file_mb allows"
        # The program has ended, but something else still holds its streams.
        if streams and _has_ended(pid):
            break
    return printed, ""


def _has_ended(pid: int) -> bool:
    """Return whether a child has ended. Its status is kept for `_end`, because it can be read only once."""
    if pid not in _ended:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            _ended[pid] = status
    return pid in _ended


_ended: dict[int, int] = {}


def _writes_too_much(pid: int, job: Mapping[str, Any]) -> bool:
    """Return whether a program's files are too large, or whether it wrote so much that removed files may be."""
    most = int(job["file_mb"]) << 20
    return _written(job["folder"]) > most or _passed_on(pid) > _REWRITES * most + int(job["output_kb"]) * 1024


def _passed_on(pid: int) -> int:
    """Return the bytes that a process has passed to write calls of any kind; 0 if the kernel does not report it."""
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("wchar"))
    except (OSError, StopIteration):
        return 0


def _written(folder: str) -> int:
    """Return the bytes of everything in a folder, plus a block per entry, since empty files take space too."""
    return sum(4096 + size for size in _sizes(folder))


def _sizes(folder: str) -> Iterator[int]:
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            try:
                yield os.lstat(os.path.join(place, name)).st_blocks * 512
            except OSError:  # removed meanwhile
                continue


def _end(pid: int) -> int:
    """Kill a process with its group and its namespaces; return its exit status."""
    ended = _has_ended(pid)
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # it has no group yet, or nothing of the group is left
        if not ended:
            os.kill(pid, signal.SIGKILL)
    status = _ended[pid] if ended else os.waitpid(pid, 0)[1]
    return os.waitstatus_to_exitcode(status)


def _rest(descriptor: int, limit: int) -> bytes:
    """Return the output of an ended program that was not read yet."""
    os.set_blocking(descriptor, False)
    data = b""
    try:
        while len(data) <= limit and (part := os.read(descriptor, 65536)):
            data += part
    except BlockingIOError:  # another process still holds the other end
        pass
    return data


def _receive(trainer: socket.socket) -> Any:
    with trainer.makefile("rb") as file:
        if len(head := file.read(4)) < 4:  # noqa: PLR2004 - the bytes of a length
            raise BrokenPipeError
        return json.loads(file.read(*struct.unpack("!I", head)))


def _send(trainer: socket.socket, message: Mapping[str, Any]) -> None:
    data = json.dumps(message).encode("ascii")
    trainer.sendall(struct.pack("!I", len(data)) + data)


if __name__ == "__main__":
    main()
